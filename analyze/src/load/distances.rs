//! The sampling distances of a recording, and when each held.

use super::Meta;
use prof_trace::records::Distance;
use prof_trace::ticks::Ticks;

/// Greatest number of sampling distances that are kept: a week of several changes a minute.
const DISTANCES: usize = 1 << 16;

impl Meta {
    /// Notes a change of the distance.
    pub(super) fn distance(&mut self, d: &Distance) {
        if d.bytes == 0 {
            return;
        }
        // Of the older ones each second goes: the present one is to be known.
        if self.distances.len() >= DISTANCES {
            let older: Vec<_> = self.distances.drain(..DISTANCES / 2).step_by(2).collect();
            self.distances.splice(..0, older);
        }
        self.distances.push((d.ticks, d.bytes));
    }

    /// Returns the least and the greatest sampling distance in bytes; 0: not sampled by bytes.
    #[must_use]
    pub fn distance_range(&self) -> (u64, u64) {
        let first = self.target.sample_bytes;
        let all = self.distances.iter().map(|d| d.1);
        all.fold((first, first), |(least, most), d| (least.min(d), most.max(d)))
    }

    /// Returns the average number of samples per allocated byte between two times in ticks.
    #[must_use]
    pub fn points_per_byte(&self, start: Ticks, end: Ticks) -> f64 {
        let rate = |bytes: u64| if bytes > 0 { 1.0 / bytes as f64 } else { 0.0 };
        let (mut at, mut bytes, mut sum) = (start, self.target.sample_bytes, 0.0);
        for (ticks, next) in &self.distances {
            let until = (*ticks).clamp(at, end.max(at));
            sum += (until - at) as f64 * rate(bytes);
            (at, bytes) = (until, *next);
        }
        sum += end.since(at) as f64 * rate(bytes);
        if end > start { sum / (end - start) as f64 } else { rate(bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_very_many_distances_older_ones_go_and_the_present_one_stays() {
        let mut meta = Meta::default();
        let all = DISTANCES as u64 + 10;
        for n in 1..=all {
            meta.distance(&Distance { ticks: Ticks(n), bytes: n });
        }
        let kept = &meta.distances;
        assert!(kept.len() <= DISTANCES && kept.is_sorted());
        assert_eq!((kept[0], kept.last()), ((Ticks(1), 1), Some(&(Ticks(all), all))));
        meta.distance(&Distance { ticks: Ticks(all + 1), bytes: 0 });
        assert_eq!(meta.distances.last(), Some(&(Ticks(all), all)), "it says nothing");
    }
}
