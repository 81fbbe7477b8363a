//! Bounds how much is kept of the use of each mapping over time, so that a recording of days can be read.

use super::Usage;

/// Number of entries that all live mappings together have, about: 84 MiB.
const ALL: usize = 1 << 20;
/// Least and greatest number of entries of one mapping.
const EACH: (usize, usize) = (16, 1024);

/// Adds an entry to the history of a mapping, one of `live`. Where the history becomes too long, each second entry of
/// its older half goes.
///
/// The first entry stays, and so does the first fall of resident memory, if there was one: whether a mapping has only
/// grown is seen in what is kept.
pub(super) fn push(history: &mut Vec<Usage>, entry: Usage, live: usize) {
    history.push(entry);
    if history.len() > (ALL / live.max(1)).clamp(EACH.0, EACH.1) {
        thin(history);
    }
}

fn thin(history: &mut Vec<Usage>) {
    let older = history.len() / 2;
    let fall = history.windows(2).position(|w| w[0].rss > w[1].rss);
    let mut at = 0..;
    history.retain(|_| {
        let at = at.next().unwrap_or(0);
        at >= older || at % 2 == 0 || fall.is_some_and(|f| at == f || at == f + 1)
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use prof_trace::ticks::Ticks;

    fn history(count: u64, live: usize, rss: impl Fn(u64) -> u64) -> Vec<Usage> {
        let mut all = Vec::new();
        for ticks in 0..count {
            push(
                &mut all,
                Usage { ticks: Ticks(ticks), rss: rss(ticks), ..Usage::default() },
                live,
            );
            assert!(all.len() <= EACH.1, "{}", all.len());
        }
        all
    }

    #[test]
    fn a_history_of_days_is_bounded_and_its_ends_stay() {
        for live in [1, 1 << 12, 1 << 20] {
            let all = history(1_000_000, live, |t| t);
            assert!(all.len() <= (ALL / live).clamp(EACH.0, EACH.1));
            assert!(all.len() >= EACH.0 / 2, "{}", all.len());
            assert_eq!((all[0].ticks, all[all.len() - 1].ticks), (Ticks::ZERO, Ticks(999_999)));
            assert!(all.is_sorted_by_key(|u| u.ticks));
        }
    }

    #[test]
    fn what_fell_once_is_not_taken_for_what_only_grew() {
        for fell in [1, 2, 7, 500, 1023, 77_777] {
            let all = history(100_000, 1, |t| if t == fell { 0 } else { t + 1 });
            assert!(!all.is_sorted_by_key(|u| u.rss), "{fell}");
        }
        assert!(history(100_000, 1, |t| t).is_sorted_by_key(|u| u.rss));
    }
}
