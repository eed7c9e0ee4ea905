use std::collections::BTreeMap;

use evenfall_core::Prng;

use super::*;

/// Written nodes in memory, and how many were asked for.
struct Shelf {
    geometry: Geometry,
    nodes: BTreeMap<u32, Bytes>,
    read: usize,
}

impl NodeSource for Shelf {
    fn node(&mut self, number: u32) -> Result<IndexNode> {
        self.read += 1;
        IndexNode::open(self.geometry, FileId(1), number, self.nodes[&number].clone())
    }
}

fn build(aggregates: usize, segments: u32, seed: u64) -> (Builder, Shelf, Vec<IndexSummary>) {
    let geometry = Geometry::new(aggregates).unwrap();
    let mut builder = Builder::new(geometry);
    let mut shelf = Shelf { geometry, nodes: BTreeMap::new(), read: 0 };
    let (mut prng, mut time, mut plain) = (Prng::new(seed), 0i64, Vec::new());
    for _ in 0..segments {
        let min_ns = time;
        // Runs of equal times cross the borders of segments now and then.
        time += prng.below(3) as i64;
        let value = i128::from(prng.below(100));
        let entry = IndexSummary {
            min_ns,
            max_ns: time,
            count: 10,
            aggregates: vec![Aggregate::of(value); aggregates],
        };
        time += prng.below(2) as i64;
        plain.push(entry.clone());
        let number = builder.nodes();
        if let Some(bytes) = builder.push(entry, FileId(1), 1) {
            shelf.nodes.insert(number, bytes);
        }
    }
    (builder, shelf, plain)
}

fn view(builder: &Builder) -> IndexView<'_> {
    let (geometry, nodes) = (builder.geometry(), builder.nodes());
    IndexView { geometry, nodes, begins_ns: builder.begins_ns(), entries: builder.entries() }
}

#[test]
fn numbers_tell_heights_as_in_section_5_5_1() {
    let geometry = Geometry::new(0).unwrap();
    assert_eq!(geometry.entries_per_node(), 649);
    assert_eq!(geometry.height(31), 0);
    assert_eq!(geometry.height(32), 1);
    assert_eq!(geometry.height(33 * 32), 2);
    let roots = geometry.roots(33 * 2 + 5);
    assert_eq!(roots.iter().map(|root| root.height).collect::<Vec<_>>(), [1, 1, 0, 0, 0, 0, 0]);
    let children: Vec<_> = geometry.children(roots[1]).map(|child| child.node).collect();
    assert_eq!(children, (33..65).collect::<Vec<_>>());
}

#[test]
fn search_finds_what_a_scan_finds() {
    // Four aggregates make small nodes, so that the tree has three levels.
    let (builder, mut shelf, plain) = build(4, 43 * 33 * 34, 1);
    assert!(builder.geometry().roots(builder.nodes())[0].height == 2);
    let mut prng = Prng::new(2);
    let end = plain.last().unwrap().max_ns;
    for _ in 0..2_000 {
        let time = prng.below(end as u64 + 20) as i64 - 10;
        for bound in [Bound::EndsBefore(time), Bound::BeginsBy(time)] {
            let found = partition(&view(&builder), bound, &mut shelf).unwrap();
            let scan = plain.partition_point(|entry| bound.holds(entry)) as u32;
            assert_eq!(found, scan, "{bound:?}");
        }
    }
}

#[test]
fn recent_times_touch_no_written_node_and_old_ones_few() {
    let (builder, mut shelf, plain) = build(4, 43 * 33 * 34 + 10, 3);
    let recent = Bound::EndsBefore(plain[plain.len() - 5].min_ns);
    partition(&view(&builder), recent, &mut shelf).unwrap();
    assert_eq!(shelf.read, 0);
    for entry in plain.iter().step_by(777) {
        shelf.read = 0;
        partition(&view(&builder), Bound::BeginsBy(entry.min_ns), &mut shelf).unwrap();
        assert!(shelf.read <= 2 * FAN_OUT as usize + 3, "{} nodes read", shelf.read);
    }
}

#[test]
fn summaries_equal_those_of_a_scan() {
    let (builder, mut shelf, plain) = build(2, 8_000, 4);
    let mut prng = Prng::new(5);
    for _ in 0..200 {
        let first = prng.below(8_000) as u32;
        let end = first + prng.below(u64::from(8_001 - first)) as u32;
        let found = summarise(&view(&builder), first, end, &mut shelf).unwrap();
        let scan = plain[first as usize..end as usize].iter().cloned().reduce(|mut all, part| {
            all.merge(&part);
            all
        });
        assert_eq!(found, scan, "{first}..{end}");
    }
}

#[test]
fn a_resumed_index_goes_on_as_if_it_had_not_stopped() {
    let (whole, mut shelf, plain) = build(4, 43 * 70 + 7, 6);
    let cut = 43 * 40;
    let geometry = whole.geometry();
    let mut resumed = Builder::resume(geometry, 40, &mut shelf).unwrap();
    for entry in &plain[cut..] {
        let number = resumed.nodes();
        if let Some(bytes) = resumed.push(entry.clone(), FileId(1), 1) {
            assert_eq!(bytes, shelf.nodes[&number], "node {number}");
        }
    }
    assert_eq!(resumed.encode(FileId(1), 1), whole.encode(FileId(1), 1));
}
