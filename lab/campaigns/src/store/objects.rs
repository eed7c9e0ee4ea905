//! The objects of the campaign, as a node sees them that has only these.

use evenfall_core::Objects;
use evenfall_store_format::Result;
use evenfall_store_format::metadata::{MetadataNode, decode_block};
use evenfall_store_format::publication::Publication;

use super::reading::{Patient, everything, retry};
use super::{Broken, Check, Mutant, Scene, broken};

/// The name of a metadata block. Each life of a node has blocks of its own.
pub(super) fn block_name(node: &MetadataNode, at: usize) -> String {
    evenfall_store_format::layout::block_name(node.token, at as u32)
}

impl Scene {
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
                Ok((snapshot.records, everything(&snapshot, &mut publication, &stream.gone)?))
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
            if !stream.begins_with(&found[..common], &stream.gone) {
                let what = format!("objects of stream {at} hold what was never written");
                return Err(broken(Check::True, what));
            }
        }
        Ok(())
    }
}
