//! Requests for several devices of one node: how many still find room, and which of them to spare room for.

/// The most requests that are looked after, the most frequent first: they are bits of a mask.
pub const REQUESTS_MAX: usize = 64;
/// One, for parts.
const ONE: i64 = 1_000_000;

/// What several devices of one node are asked with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    pub devices: i64,
    pub cpus: i64,
    pub memory: i64,
    /// What hardware it demands, as a number.
    pub hardware: usize,
}

impl Request {
    fn covers(&self, other: &Self) -> bool {
        self.devices >= other.devices && self.cpus >= other.cpus && self.memory >= other.memory
    }
}

/// The requests of the usual mix.
#[derive(Debug, Default)]
pub struct UsualRequests {
    pub requests: Vec<Request>,
    /// How many of each come per task, larger ones counted in it, in millionths.
    comes: Vec<i64>,
    /// What a task takes on average, in thousandths of a GPU.
    mean: i64,
}

impl UsualRequests {
    /// From requests with their counts, among so many tasks that take so much in all.
    pub fn of(counted: &[(Request, i64)], tasks: i64, milli: i64) -> Self {
        let mut counted = counted.to_vec();
        counted.sort_by_key(|&(request, count)| (std::cmp::Reverse(count), request));
        counted.truncate(REQUESTS_MAX);
        let requests: Vec<Request> = counted.iter().map(|&(request, _)| request).collect();
        let comes = |least: &Request| {
            let larger = counted.iter().filter(|(request, _)| request.covers(least));
            larger
                .map(|(request, count)| {
                    count * ONE / tasks.max(1) * (request.devices / least.devices)
                })
                .sum()
        };
        Self {
            comes: requests.iter().map(comes).collect(),
            mean: (milli / tasks.max(1)).max(1),
            requests,
        }
    }

    /// How often a node has room for one request.
    pub fn room(&self, request: usize, devices: i64, cpus: i64, memory: i64) -> i64 {
        let asked = &self.requests[request];
        let of = |has: i64, each: i64| {
            if each == 0 {
                i64::MAX
            } else {
                has.max(0) / each
            }
        };
        of(devices, asked.devices)
            .min(of(cpus, asked.cpus))
            .min(of(memory, asked.memory))
    }

    /// The requests for which there may be too little room before all is full: those with
    /// no more room than are expected to come, and two deviations of it. Where no node is,
    /// no room is known of any, and none is taken.
    pub fn scarce(&self, room: &[i64], idle_milli: i64) -> u64 {
        let tasks = idle_milli / self.mean;
        let mut mask = 0;
        for (at, (&comes, room)) in self.comes.iter().zip(room).enumerate() {
            let expected = tasks * comes;
            let deviation = (i128::from(expected) * i128::from(ONE)).isqrt() as i64;
            if room * ONE <= expected + 2 * deviation + ONE {
                mask |= 1 << at;
            }
        }
        mask
    }

    /// The requests that a task may take room from freely, as it is at least as large.
    pub fn covered_by(&self, task: &Request) -> u64 {
        let covered = self
            .requests
            .iter()
            .enumerate()
            .filter(|(_, r)| task.covers(r));
        covered.fold(0, |mask, (at, _)| mask | 1 << at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_scarce_when_little_more_room_is_left_than_comes() {
        let eight = Request {
            devices: 8,
            cpus: 1000,
            memory: 0,
            hardware: 0,
        };
        // One task in ten asks for eight; the others for one.
        let reserve = UsualRequests::of(&[(eight, 10)], 100, 90_000 + 80_000);
        assert_eq!(reserve.room(0, 17, 1500, 0), 1);
        assert_eq!(reserve.room(0, 17, 9000, 0), 2);
        // 200 tasks until full, of which 20 ask for eight: 20 + 2 × 4.47 + 1 is the line.
        assert_eq!(reserve.scarce(&[29], 340_000), 1);
        assert_eq!(reserve.scarce(&[30], 340_000), 0);
        assert_eq!(reserve.scarce(&[], 0), 0);
        assert_eq!(reserve.covered_by(&eight), 1);
        assert_eq!(
            reserve.covered_by(&Request {
                devices: 7,
                ..eight
            }),
            0
        );
    }
}
