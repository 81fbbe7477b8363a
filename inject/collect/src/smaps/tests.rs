//! Tests of [`super`](super).

use super::*;
use prof_os::Pid;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

/// Locked by tests that allocate much memory, or compare all of it.
static MEMORY: Mutex<()> = Mutex::new(());

#[test]
fn mappings_are_added_up_by_kind() {
    let text = "\
5000-6000 r-xp 00000000 08:01 77 /bin/x\nSize: 4 kB\nRss:  4 kB\nPss: 2 kB\n\
7000-9000 rw-p 00000000 00:00 0 [heap]\nRss: 8 kB\nAnonymous: 8 kB\n\
9000-a000 rw-p 00000000 00:00 0 \nRss: 4 kB\nSwap: 12 kB\n\
b000-c000 ---p 00000000 00:00 0 \nRss: 0 kB\n\
c000-e000 rw-p 00000000 00:00 0 \nRss: 4 kB\n\
10000-18000 rw-s 00000000 00:05 9 /memfd:prof-ring (deleted)\nRss: 16 kB\n\
7fff0000-7fff2000 rw-p 00000000 00:00 0 [stack]\nRss: 8 kB\n\
7fff4000-7fff5000 r-xp 00000000 00:00 0 [vdso]\nRss: nonsense kB\nRss\n";
    let known =
        Sum { ours: &[(0x10000, 0x18000)], stacks: &[(0xc000, 0xe000, 7)], ..Sum::default() };
    let m = sum_up(text.as_bytes(), known).expect("mappings").all;
    let kinds: Vec<[u64; 3]> = m.maps.as_chunks::<3>().0.to_vec();
    let kb = 1024;
    assert_eq!(
        kinds,
        [
            [map_kind::HEAP, 0x2000, 8 * kb],
            [map_kind::ANONYMOUS, 0x2000, 4 * kb],
            [map_kind::STACK, 0x4000, 12 * kb],
            [map_kind::FILE, 0x1000, 4 * kb],
            [map_kind::PROF, 0x8000, 16 * kb],
            [map_kind::OTHER, 0x1000, 0],
        ]
    );
    assert_eq!(m.heaps, [0x7000, 0xa000, 12 * kb]);
    assert_eq!((m.pss, m.anonymous, m.swap, m.prof), (2 * kb, 8 * kb, 12 * kb, 16 * kb));
    // Without a thread in it, a mapping is not a stack, even with a guard page below.
    let m = sum_up(text.as_bytes(), Sum::default()).expect("mappings").all;
    assert_eq!(m.maps.as_chunks::<3>().0[2], [map_kind::STACK, 0x2000, 8 * kb]);
    assert!(sum_up(&b""[..], Sum::default()).is_none());
    assert!(sum_up(&b"Rss: 4 kB\n"[..], Sum::default()).is_none());
}

/// The guards between stacks are no mappings since glibc 2.42 and Linux 6.13, so that one mapping has several stacks.
#[test]
fn several_stacks_in_a_mapping_are_told_from_what_lies_around() {
    let of = |from, to| (from, to, 7);
    let all = parts((10, 90), &[of(20, 30), of(30, 40), of(60, 70)]);
    let expected =
        [(10, 20, false), (20, 40, true), (40, 60, false), (60, 70, true), (70, 90, false)];
    assert_eq!(all, expected);
    assert_eq!(parts((10, 90), &[]), [(10, 90, false)]);
    assert_eq!(parts((10, 90), &[of(10, 50), of(50, 90)]), [(10, 90, true)]);
    // Descriptors that lie: one stack within another, and one that overlaps.
    let all = parts((10, 90), &[of(20, 60), of(30, 40), of(50, 80)]);
    assert_eq!(all, [(10, 20, false), (20, 80, true), (80, 90, false)]);
    let text = "7000-a000 rw-p 00000000 00:00 0 \nRss: 12 kB\n";
    let stacks = &[(0x7000, 0x8000, 5), (0x8000, 0xa000, 6)];
    let sum = sum_up(text.as_bytes(), Sum { stacks, ..Sum::default() }).expect("mappings");
    assert_eq!(sum.threads, stacks);
    assert_eq!(sum.all.maps.as_chunks::<3>().0[2], [map_kind::STACK, 0x3000, 12 << 10]);
}

/// Threads of Go sleep on stacks that lie anywhere in its heap, and threads made by `clone` alone at the end of a
/// mapping: neither has a descriptor of libc's.
#[test]
fn a_sleeping_thread_makes_a_stack_of_the_end_of_a_mapping_only() {
    let text = "40000000-44000000 rw-p 00000000 00:00 0 \nRss: 64 kB\n";
    let stacks = |pointers| {
        let m = sum_up(text.as_bytes(), Sum { pointers, ..Sum::default() }).expect("mappings");
        m.all.maps.as_chunks::<3>().0[2]
    };
    let (none, size) = ([map_kind::STACK, 0, 0], 8 << 20);
    assert_eq!(stacks(&[(0x43ff_f000, 7)])[1], size);
    assert_eq!(stacks(&[(0x4000_8000, 7)]), none);
    assert_eq!(stacks(&[(0x43ff_e000, 7), (0x43ff_f000, 8)]), none);
    assert_eq!(stacks(&[(0x4400_0000, 7)]), none);
}

#[test]
fn our_own_memory_is_there() {
    let clock = Clock::monotonic();
    let mut s = Smaps::open(Pid::this());
    let check = |l: &Looked| {
        let m = &l.memory;
        let used: u64 = l.used.iter().map(|u| u.of.rss).sum();
        assert!(used > 100 << 10 && l.used.is_sorted_by_key(|u| u.start), "{l:?}");
        let rss: u64 = m.maps.as_chunks::<3>().0.iter().map(|k| k[2]).sum();
        assert!(rss > 100 << 10 && m.rss > 100 << 10 && !m.heaps.is_empty(), "{m:?}");
    };
    check(&s.now(&Known::default(), clock).expect("mappings"));
    assert_eq!(s.poll(Known::default, clock), None);
    let seen = loop {
        match s.poll(Known::default, clock) {
            Some(m) => break m,
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    check(&seen);
    assert!(s.next > Instant::now() && s.gap > GAP.0);
}

/// Returns fully resident memory for which `smaps` would hold the lock for long. 256 MiB represent larger sizes, as
/// the time grows with the mapping.
fn large() -> &'static mut [u8] {
    let len = 256 << 20;
    let at = crate::pages::tests::map(len, libc::MAP_PRIVATE);
    // SAFETY: the memory is new and has this length.
    let all = unsafe { std::slice::from_raw_parts_mut(at, len) };
    all.iter_mut().step_by(4096).for_each(|b| *b = 1);
    all
}

/// The kernel holds the lock of the mappings for as long as it walks pages, so the pages of one call bound the time for
/// which a thread of the target may wait. That time itself depends on how busy the machine is.
#[test]
fn large_mappings_hold_nobody_up() {
    let _alone = MEMORY.lock();
    let all = large();
    let s = Smaps::open(Pid::this());
    let files = s.files.as_ref().expect("files");
    assert!(!files.is_small(4096));
    files.look(&Known::default(), Clock::monotonic()).expect("mappings");
    let pages = files.pages.as_ref().expect("pagemap");
    let [found, most] = [0, 1].map(|i| pages.found[i].load(Relaxed));
    assert!(found * pages.page() >= all.len() as u64, "{found} pages found");
    assert!(most <= 8192, "{most} pages in one call");
    let read = (&files.smaps).stream_position().expect("a position");
    assert_eq!(read, 0, "smaps was read, for which the kernel walks whole mappings");
    assert_eq!(all[4096], 1);
    // SAFETY: the mapping has this length, and is not used any more.
    unsafe { libc::munmap(all.as_mut_ptr().cast(), all.len()) };
}

#[test]
fn pieces_add_up_to_what_smaps_says() {
    let _alone = MEMORY.lock();
    let page = Pages::new(File::open("/proc/self/pagemap").expect("pagemap")).page() as usize;
    let private = crate::pages::tests::map(5000 * page, libc::MAP_PRIVATE);
    // SAFETY: the pages lie inside of the mapping.
    unsafe {
        (0..3000).for_each(|n| private.add(n * page).write_volatile(1));
        (3000..4000).for_each(|n| _ = private.add(n * page).read_volatile());
    }
    let s = Smaps::open(Pid::this());
    let files = s.files.as_ref().expect("files");
    let asked =
        files.ask(files.pages.as_ref().expect("pagemap"), Sum::default()).expect("mappings");
    (&files.smaps).seek(SeekFrom::Start(0)).expect("from the start");
    let read = sum_up(BufReader::new(&files.smaps), Sum::default()).expect("mappings");
    let of = |m: &Memory| {
        let heaps = m.heaps.as_chunks::<3>().0.to_vec();
        let mine = heaps.iter().find(|h| (h[0]..h[1]).contains(&(private as u64)));
        let kinds: Vec<u64> = m.maps.as_chunks::<3>().0.iter().map(|k| k[2]).collect();
        (*mine.expect("the mapping"), kinds, m.anonymous, m.swap)
    };
    let use_of = |used: &[Used]| {
        used.iter().find(|u| (u.start..u.end).contains(&(private as u64))).expect("mine").of
    };
    let (mine, told) = (use_of(&asked.used), use_of(&read.used));
    assert_eq!(mine.private_dirty, mine.anonymous);
    assert!(
        mine.rss.abs_diff(told.rss) < 3 << 20 && mine.rss == mine.anonymous,
        "{mine:?} {told:?}"
    );
    let (asked, read) = (asked.all, read.all);
    let ((mine, kinds, anonymous, swap), read) = (of(&asked), of(&read));
    // Other tests of this process may allocate memory meanwhile.
    let near = |a: u64, b: u64| a.abs_diff(b) < 3 << 20;
    assert!(near(mine[2], read.0[2]) && mine[2] >= 3000 * page as u64, "{asked:?}");
    assert!(kinds.iter().zip(&read.1).all(|(a, b)| near(*a, *b)), "{kinds:?} {:?}", read.1);
    assert!(near(anonymous, read.2) && near(swap, read.3), "{asked:?}");
}

#[test]
fn the_page_of_zeroes_is_taken_out_where_it_may_be() {
    let map = |at: u64| {
        Map::parse(format!("{at:x}-{:x} rw-p 0 00:00 0", at + 1).as_bytes()).expect("line")
    };
    let counted = |resident, doubtful| Counted { resident, doubtful, ..Counted::default() };
    let mut all = vec![(map(1), counted(100 << 20, 80 << 20)), (map(2), counted(60 << 20, 0))];
    without_zeroes(&mut all, 150 << 20);
    assert_eq!(all[0].1.resident, 100 << 20, "the kernel's count lags behind");
    without_zeroes(&mut all, 120 << 20);
    assert_eq!((all[0].1.resident, all[1].1.resident), (60 << 20, 60 << 20));
}
