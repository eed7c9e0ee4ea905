//! A shuffle in which senders and receivers wait for each other names the circle.

use evenfall_campaigns::shuffle::Unfinished;
use evenfall_campaigns::shuffle::unfinished::{Link, find_circle};
use evenfall_sim::SimTime;

#[test]
fn a_circle_is_found_behind_the_nodes_that_only_lead_to_it() {
    // 0 waits for 3, whose grants 1 holds; 1 waits for 4, whose grants 2 holds; 2 waits for 3.
    let waits_for = |sender: usize| [Some(3), Some(4), Some(3), None, None][sender];
    let held = |receiver: usize, sender: usize| match (receiver, sender) {
        (3, 1) => 7,
        (3, 0) | (4, 0) => 1,
        (4, 2) => 5,
        _ => 0,
    };
    let link = |sender, receiver, held| Link { sender, receiver, held };
    let found = find_circle(5, waits_for, held).expect("a circle");
    assert_eq!(found, [link(1, 4, 5), link(2, 3, 7)]);
    let (seed, since, left) = (2, SimTime::from_micros(3), 9);
    let text = Unfinished::Deadlock { seed, since, left, circle: found }.to_string();
    assert_eq!(
        text,
        "seed 2: deadlock since 3.0 us, 9 messages had not arrived; node 1 waits for a grant \
         of node 4, 5 of whose grants node 2 holds; node 2 waits for a grant of node 3, 7 of \
         whose grants node 1 holds"
    );
}

#[test]
fn a_sender_that_waits_for_a_receiver_with_grants_to_give_is_no_circle() {
    assert_eq!(find_circle(3, |sender| (sender == 0).then_some(2), |_, _| 0), None);
}
