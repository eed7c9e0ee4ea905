use std::sync::Arc;

use evenfall_core::{Objects, Prng, PutOutcome, StorageError};

use super::*;
use crate::appender::Appender;
use crate::layout::{pack_name, parse_chunk_name};
use crate::publication::Publication;
use crate::schema::Schema;

/// A file, its full segments, and the packs in which its end was put.
struct Scene {
    appender: Appender,
    shelf: BTreeMap<(SegmentKind, u32), Bytes>,
    end: PackedEnd,
    node: MetadataNode,
    packs: BTreeMap<u32, Bytes>,
}

impl Segments for BTreeMap<(SegmentKind, u32), Bytes> {
    fn segment(&mut self, kind: SegmentKind, _: FileId, number: u32) -> Result<Bytes> {
        let found = self.get(&(kind, number)).cloned();
        found.ok_or_else(|| Error::damaged(format!("{kind:?} {number}"), "not there"))
    }
}

impl Scene {
    /// A file with two records to a segment.
    fn new() -> Self {
        let appender = Appender::new(FileId(1), 1, Arc::new(Schema::opaque(8_000))).unwrap();
        let node = MetadataNode { file: FileId(1), token: 1, ..MetadataNode::default() };
        let (shelf, packs) = (BTreeMap::new(), BTreeMap::new());
        Self { appender, shelf, end: PackedEnd::default(), node, packs }
    }

    fn append(&mut self, count: u64) {
        let mut sealed = Vec::new();
        for _ in 0..count {
            let number = self.appender.records();
            let record = [(number as i64).to_le_bytes().to_vec(), vec![number as u8; 7_992]];
            self.appender.append(&record.concat(), &mut sealed).unwrap();
        }
        self.shelf.extend(sealed.into_iter().map(|s| ((s.kind, s.number), s.bytes)));
    }

    /// Publishes the file in a pack of its own. Returns the bytes that were put.
    fn publish(&mut self, is_leaving: &dyn Fn(u32) -> bool) -> usize {
        let end = End::of(&self.appender, 0);
        let (records, index_nodes) = (end.at.records, end.at.nodes);
        let data_chunks = end.at.layout.full_segments(records) / SEGMENTS_PER_CHUNK;
        let node = MetadataNode { records, index_nodes, data_chunks, ..self.node };
        let draft = self.end.draft_part(&mut self.shelf, &end, node, is_leaving).unwrap();
        let bytes = draft.bytes().clone();
        let pack = self.packs.len() as u32 + 1;
        let place = PackPart { pack, offset: 7, bytes: bytes.len() as u32 };
        self.packs.insert(pack, [&[0; 7][..], &bytes[..]].concat().into());
        self.node = self.end.accept_part(draft, place);
        bytes.len()
    }

    /// The segments in the parts that the node names, the parts in the order of the node.
    fn read(&self) -> BTreeMap<(SegmentKind, u32), Bytes> {
        let mut found = BTreeMap::new();
        for part in self.node.parts.iter().filter(|part| part.bytes > 0) {
            let from = part.offset as usize;
            let bytes = self.packs[&part.pack].slice(from..from + part.bytes as usize);
            found.extend(decode_part(&bytes, FileId(1), "here").unwrap());
        }
        found
    }

    /// Checks that the parts have every segment that no chunk has, as it is now.
    fn check(&self) {
        let (found, end) = (self.read(), End::of(&self.appender, 0));
        let full = end.at.layout.full_segments(end.at.records);
        for number in self.node.data_chunks * SEGMENTS_PER_CHUNK..full {
            let key = (SegmentKind::Data, number);
            assert!(found.get(&key) == self.shelf.get(&key), "segment {number} of {full}");
        }
        for number in 0..end.at.nodes {
            let key = (SegmentKind::Index, number);
            assert!(found.get(&key) == self.shelf.get(&key), "node {number}");
        }
        assert!(
            end.open_data.is_none()
                || found.get(&(SegmentKind::Data, full)) == end.open_data.as_ref()
        );
        let open = (SegmentKind::Index, end.at.nodes);
        assert!(end.open_index.is_none() || found.get(&open) == end.open_index.as_ref());
    }
}

/// The packs and the chunks as objects.
impl Objects for Scene {
    fn put(&self, _: &str, _: Bytes) -> Result<(), StorageError> {
        unreachable!("the objects are read only")
    }
    fn put_new(&self, _: &str, _: Bytes) -> Result<PutOutcome, StorageError> {
        unreachable!("the objects are read only")
    }
    fn swap(&self, _: &str, _: &Bytes, _: Bytes) -> Result<PutOutcome, StorageError> {
        unreachable!("the objects are read only")
    }
    fn get(&self, name: &str, offset: u64, len: usize) -> Result<Option<Bytes>, StorageError> {
        let from = offset as usize;
        let pack = self.packs.iter().find(|(pack, _)| pack_name(1, **pack) == name);
        if let Some((_, bytes)) = pack {
            return Ok(Some(bytes.slice(from..from + len)));
        }
        let slot = (from / SEGMENT_BYTES) as u32;
        let key = parse_chunk_name(name)
            .map(|(kind, _, chunk)| (kind, chunk * SEGMENTS_PER_CHUNK + slot));
        Ok(key.and_then(|key| self.shelf.get(&key).cloned()))
    }
    fn delete(&self, _: &str) -> Result<(), StorageError> {
        unreachable!("the objects are read only")
    }
    fn list(&self, _: &str) -> Result<Vec<String>, StorageError> {
        unreachable!("the objects are read only")
    }
}

#[test]
fn a_segment_that_was_open_in_a_part_is_read_from_its_chunk() {
    let mut scene = Scene::new();
    // A node of the index is full, so the part stays when its records are in a chunk.
    scene.append(2 * 700 + 1);
    scene.publish(&|_| false);
    scene.append(2 * 68);
    scene.publish(&|_| false);
    assert_eq!(scene.node.data_chunks, 3);
    assert_eq!(scene.node.parts.iter().filter(|part| part.bytes > 0).count(), 2);
    let mut publication = Publication::open(&scene, scene.node).unwrap();
    for number in [0, 699, 700, 767] {
        let found = publication.segment(SegmentKind::Data, FileId(1), number).unwrap();
        assert!(found == scene.shelf[&(SegmentKind::Data, number)], "segment {number}");
    }
}

#[test]
fn the_parts_have_all_that_no_chunk_has_and_a_segment_is_put_a_few_times() {
    let (mut scene, mut prng) = (Scene::new(), Prng::new(1));
    let mut put = 0;
    for round in 0..700 {
        scene.append(prng.below(4));
        put += scene.publish(&|_| false);
        if round % 25 == 0 {
            scene.check();
        }
        scene.packs.retain(|pack, bytes| {
            if !scene.node.parts.iter().any(|part| part.pack == *pack) {
                *bytes = Bytes::new();
            }
            true
        });
    }
    let appended = scene.appender.records() as usize * 8_000;
    // The end of the file, put whole each time, would be a hundred times as much.
    assert!(put < 10 * appended, "{put} bytes put, {appended} appended");
}

#[test]
fn a_file_that_stays_as_it_is_puts_nothing_and_leaves_packs_that_have_to_go() {
    let mut scene = Scene::new();
    assert_eq!(scene.publish(&|_| false), 0, "an empty file");
    scene.append(5);
    assert!(scene.publish(&|_| false) > 2 * SEGMENT_BYTES);
    assert_eq!(scene.publish(&|_| false), 0);
    scene.check();
    scene.append(1);
    // The last segment is full now, and the two before it are in the first part.
    let one = scene.publish(&|_| false);
    assert!(one > 0 && one < 2 * SEGMENT_BYTES, "{one}");
    assert_eq!(scene.node.parts.iter().filter(|part| part.bytes > 0).count(), 2);
    let first = scene.node.parts[0].pack;
    assert!(scene.end.is_in(&|pack| pack == first));
    assert!(scene.publish(&|pack| pack == first) > 3 * 8_000);
    assert!(!scene.end.is_in(&|pack| pack == first));
    scene.check();
}

#[test]
fn open_segments_of_few_records_take_few_bytes() {
    let schema = Arc::new(Schema::opaque(16));
    let mut appender = Appender::new(FileId(3), 1, schema).unwrap();
    appender.append(&[1; 16], &mut Vec::new()).unwrap();
    let end = End::of(&appender, 0);
    let node = MetadataNode { records: 1, ..MetadataNode::default() };
    let none: &mut BTreeMap<(SegmentKind, u32), Bytes> = &mut BTreeMap::new();
    let draft = PackedEnd::default().draft_part(none, &end, node, &|_| false).unwrap();
    assert!(draft.bytes().len() < 200, "{}", draft.bytes().len());
    let found = decode_part(draft.bytes(), FileId(3), "here").unwrap();
    assert_eq!(found.get(&(SegmentKind::Data, 0)), end.open_data.as_ref());
    assert!(decode_part(draft.bytes(), FileId(4), "here").is_err());
}

#[test]
fn every_flipped_byte_and_every_cut_of_a_pack_is_found() {
    let mut scene = Scene::new();
    scene.append(1);
    let end = End::of(&scene.appender, 0);
    let node = MetadataNode { records: 1, ..MetadataNode::default() };
    let draft = PackedEnd::default().draft_part(&mut scene.shelf, &end, node, &|_| false).unwrap();
    let pack = [&draft.bytes()[..], &draft.bytes()[..]].concat();
    assert_eq!(check_pack(&Bytes::from(pack.clone()), "here"), Ok(2));
    for at in (0..pack.len()).step_by(5).chain(0..64) {
        let mut flipped = pack.clone();
        flipped[at] ^= 4;
        assert!(check_pack(&Bytes::from(flipped), "here").is_err(), "byte {at}");
    }
    for len in [0, 1, 31, 32, 50, pack.len() / 2 - 1, pack.len() / 2 + 1, pack.len() - 1] {
        assert!(check_pack(&Bytes::from(pack[..len].to_vec()), "here").is_err(), "{len} bytes");
    }
}
