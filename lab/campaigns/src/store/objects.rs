//! The objects of the campaign, as a node sees them that has only these.

use std::collections::BTreeSet;

use bytes::BytesMut;
use evenfall_core::Objects;
use evenfall_store_format::Result;
use evenfall_store_format::layout::pack_name;
use evenfall_store_format::metadata::{MetadataNode, decode_block, encode_block};
use evenfall_store_format::pack::{PackPart, PartDraft};
use evenfall_store_format::publication::{End, Publication, as_it_is, publish_chunks, put_block};

use super::reading::{Local, Patient, everything, retry};
use super::{Broken, Check, Mutant, Scene, broken};

/// The name of a metadata block. Each life of a node has blocks of its own.
fn block_name(node: &MetadataNode, at: usize) -> String {
    evenfall_store_format::layout::block_name(node.token, at as u32)
}

impl Scene {
    /// Publishes some of the streams. Their ends share a pack.
    pub(super) fn publish(&mut self) {
        let first = self.prng.below(self.streams.len() as u64) as usize;
        let drafts: Vec<_> =
            (first..self.streams.len()).filter_map(|at| Some((at, self.draft_end(at)?))).collect();
        let mut pack = BytesMut::new();
        drafts.iter().for_each(|(_, draft)| pack.extend_from_slice(draft.bytes()));
        self.packs += u32::from(self.packs == 0 || self.mutant != Some(Mutant::PackInOnePlace));
        // All streams are in the same life of the node.
        let name = pack_name(self.streams[first].appender.token(), self.packs);
        if !pack.is_empty() && self.objects.put(&name, pack.freeze()).is_err() {
            return;
        }
        let mut offset = 0;
        for (at, draft) in drafts {
            let bytes = draft.bytes().len() as u32;
            let place = PackPart { pack: self.packs, offset, bytes };
            offset += bytes;
            let node = self.streams[at].packed.accept_part(draft, place);
            self.name_parts(at, node);
        }
    }

    /// Puts the chunks of a stream, and makes its next part.
    fn draft_end(&self, at: usize) -> Option<PartDraft> {
        let stream = &self.streams[at];
        let end = End::of(&stream.appender, 0);
        let mut local = Local {
            appender: Some(&stream.appender),
            volume: &self.volume,
            waiting: &self.waiting,
            objects: &self.objects,
        };
        let done = &stream.published;
        let node = publish_chunks(&self.objects, &mut local, &end, done, &as_it_is).ok()?;
        stream.packed.draft_part(&mut local, &end, node, &|_| false).ok()
    }

    /// Puts the block of a stream that names its parts.
    fn name_parts(&mut self, at: usize, node: MetadataNode) {
        let pack = |part: PackPart| pack_name(node.token, part.pack);
        let named: BTreeSet<String> = node.packed_parts().map(pack).collect();
        if self.mutant == Some(Mutant::PackDroppedEarly) {
            self.drop_packs(at, &named);
        }
        let stream = &mut self.streams[at];
        // A put that fails may have taken effect.
        stream.held.extend(named.iter().cloned());
        let (name, block) = (block_name(&node, at), encode_block(1, at as u32, &[node]));
        let put = match self.mutant {
            Some(Mutant::BlockUnconditional) => self.objects.put(&name, block).map_err(Into::into),
            _ => put_block(&self.objects, &name, &mut stream.block, &block),
        };
        if put.is_ok() || self.mutant == Some(Mutant::PublishedTooEarly) {
            stream.published = node;
            stream.object = node.records;
            self.outcome.object += 1;
            self.drop_packs(at, &named);
        }
    }

    /// Removes packs that no block names. The removal may come late, or never.
    fn drop_packs(&mut self, at: usize, named: &BTreeSet<String>) {
        let held = std::mem::replace(&mut self.streams[at].held, named.clone());
        for pack in held.difference(named) {
            if !self.streams.iter().any(|stream| stream.held.contains(pack)) {
                let _ = self.objects.delete(pack);
            }
        }
    }

    /// Checks the records as a node sees them that has only the objects.
    pub(super) fn check_objects(&mut self) -> Result<(), Broken> {
        for at in 0..self.streams.len() {
            let stream = &self.streams[at];
            let (promised, size) = (stream.object, stream.size());
            if promised == 0 {
                continue;
            }
            let read = || -> Result<(u64, Vec<u8>)> {
                let name = block_name(&stream.published, at);
                let trusting = self.mutant == Some(Mutant::ListingTrusted);
                if trusting && !self.objects.list(&name)?.contains(&name) {
                    return Ok((0, Vec::new()));
                }
                let block = self.objects.get(&name, 0, usize::MAX)?;
                let nodes = decode_block(&block.unwrap_or_default(), "block")?;
                let mut publication = Publication::open(&self.objects, nodes[0])?;
                let snapshot = publication.snapshot(&stream.schema)?;
                let mut publication = Patient(&mut publication);
                let (gone, missing) = (&stream.gone, &stream.missing);
                Ok((snapshot.records, everything(&snapshot, &mut publication, gone, missing)?))
            };
            let (records, found) = retry(read)
                .map_err(|error| broken(Check::Published, format!("objects: {error}")))?;
            if records < promised {
                let what = format!("objects: {promised} promised, {records} there");
                return Err(broken(Check::Published, what));
            }
            if found.len() as u64 != records * size as u64 {
                let what = format!("objects: {} bytes of {records} records are read", found.len());
                return Err(broken(Check::Published, what));
            }
            // The objects may have records that the disk lost in the crash.
            let common = found.len().min(stream.truth.len()).min(promised as usize * size);
            stream.check_messages(0, &found[..common], &stream.gone, 0, self.mutant)?;
            if !stream.begins_with(&found[..common], &stream.gone) {
                let what = format!("objects of stream {at} hold what was never written");
                return Err(broken(Check::True, what));
            }
        }
        Ok(())
    }
}
