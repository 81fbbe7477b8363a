# The same of Perl: values of an array; "own" leaks strings of 3,000 bytes.
use Time::HiRes qw(time sleep);
$| = 1;
my $leaks = $ARGV[1] eq "own";
my @cache = map { "x" x (600 + $_ % 8 * 64) } 0 .. 19999;
my @kept;
sub request {
    my ($leak) = @_;
    my $at = int(rand(20000));
    $cache[$at] = undef;
    my $value = "y" x (600 + $at % 8 * 64);
    $cache[$at] = $value;
    push @kept, "z" x 2990 . $at if $leak;
}
request(0) for 1 .. 40000;
print "ready\n";
my ($start, $n) = (time, 0);
while (1) {
    while ($n < (time - $start) * 1000) { request($leaks); $n++ }
    sleep 0.001;
}
