//! Groups devices by the links between them.

/// A link of a device, by places in a list of devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// To another device.
    Peer(usize, usize),
    /// To a switch, through which all devices on a switch reach each other.
    Switch(usize),
}

/// The groups of two or more devices that are joined by links, each in order, by its first.
pub fn cliques(count: usize, links: &[Link]) -> Vec<Vec<usize>> {
    // `group[i]` is the least place that is joined with i.
    let mut group: Vec<usize> = (0..count).collect();
    let mut switched: Option<usize> = None;
    for link in links {
        match *link {
            Link::Peer(one, other) => join(&mut group, one, other),
            Link::Switch(one) => {
                let first = *switched.get_or_insert(one);
                join(&mut group, first, one);
            }
        }
    }
    (0..count)
        .map(|first| {
            (0..count)
                .filter(|at| group[*at] == first)
                .collect::<Vec<_>>()
        })
        .filter(|members| members.len() > 1)
        .collect()
}

fn join(group: &mut [usize], one: usize, other: usize) {
    let (low, high) = (group[one].min(group[other]), group[one].max(group[other]));
    for place in group.iter_mut().filter(|place| **place == high) {
        *place = low;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_joins_all_that_are_on_it() {
        let links: Vec<Link> = (0..8).map(Link::Switch).collect();
        assert_eq!(cliques(8, &links), vec![(0..8).collect::<Vec<_>>()]);
    }

    #[test]
    fn bridges_join_pairs_and_no_link_joins_nobody() {
        let links = [Link::Peer(0, 1), Link::Peer(1, 0), Link::Peer(3, 2)];
        assert_eq!(cliques(5, &links), vec![vec![0, 1], vec![2, 3]]);
        assert!(cliques(4, &[]).is_empty());
    }
}
