//! What the nameserver tells in the words of Hadoop: blocks, defaults, room and rights.

use std::ops::Range;

use evenfall_files_machine::Nameserver;
use evenfall_files_machine::config::BLOCK_BYTES;
use evenfall_files_machine::namespace::Inode;
use evenfall_files_machine::wire::DataserverPlace;
use serde_json::{Value, json};

use super::owner::OwnerInbox;
use super::webhdfs::{REPLICATION, WebHdfsException, WebHdfsRequest};
use super::webhdfs_nameserver::Located;

/// Hadoop's number of the checksum CRC32C.
const CRC32C: u8 = 2;
/// The rack of dataservers whose racks are not known.
const RACK: &str = "/default-rack";

/// The settings for a client that has no settings of its own.
pub fn server_defaults() -> Value {
    json!({ "FsServerDefaults": {
        "blockSize": BLOCK_BYTES, "bytesPerChecksum": 512, "writePacketSize": 65_536,
        "replication": REPLICATION, "fileBufferSize": 4_096, "encryptDataTransfer": false,
        "trashInterval": 0, "checksumType": CRC32C, "keyProviderUri": "",
        "defaultStoragePolicyId": 0,
    } })
}

/// The room of all disks that live.
pub fn file_system(inbox: &OwnerInbox<Nameserver>) -> Result<Value, WebHdfsException> {
    let (used, free) = inbox.ask(|server, now| {
        let live = server.servers().iter().filter(|(disk, _)| server.is_live(now, **disk));
        live.fold((0_u64, 0_u64), |(used, free), (_, one)| {
            (used.saturating_add(one.used), free.saturating_add(one.free))
        })
    })?;
    let capacity = used.saturating_add(free);
    Ok(json!({ "FsStatus": { "used": used, "remaining": free, "capacity": capacity } }))
}

/// The rights of an inode, which has no list of rights beside its mode.
pub fn acl(inode: &Inode) -> Value {
    json!({ "AclStatus": {
        "entries": [], "owner": inode.owner, "group": inode.group,
        "permission": format!("{:o}", inode.mode), "stickyBit": inode.mode & 0o1000 != 0,
    } })
}

/// The rights that the argument of `CHECKACCESS` names.
pub fn action(request: &WebHdfsRequest) -> Result<u16, WebHdfsException> {
    let action = request.text("fsaction").unwrap_or("---").as_bytes();
    let is_action = action.len() == 3
        && action.iter().zip(b"rwx").all(|(given, right)| given == right || *given == b'-');
    match is_action {
        true => Ok(action.iter().fold(0, |bits, letter| bits << 1 | u16::from(*letter != b'-'))),
        false => Err(WebHdfsException::argument("fsaction is three of r, w, x and -, such as r--")),
    }
}

/// The blocks of a file that have a byte of the range: where each begins, and its length. A
/// dataserver has all blocks of a file or none, so blocks are only how Hadoop divides a file among
/// its tasks.
fn blocks(block: u64, length: u64, range: &Range<u64>) -> impl Iterator<Item = (u64, u64)> + use<> {
    let (first, end) = (range.start / block, range.end.min(length).div_ceil(block));
    let begin = if range.is_empty() || range.start >= length { end } else { first };
    (begin..end).map(move |at| (at * block, block.min(length - at * block)))
}

/// The answer of `GETFILEBLOCKLOCATIONS`.
pub fn block_locations(located: &Located, range: Range<u64>) -> Value {
    let of = |word: &dyn Fn(&DataserverPlace) -> String| -> Vec<String> {
        located.places().map(word).collect()
    };
    let hosts = of(&|place| place.http.ip().to_string());
    let names = of(&|place| place.http.to_string());
    let racks = of(&|place| format!("{RACK}/{}", place.http));
    let kinds = of(&|_| "DISK".to_owned());
    let one = |(offset, length): (u64, u64)| {
        json!({
            "cachedHosts": [], "corrupt": hosts.is_empty(), "hosts": hosts, "length": length,
            "names": names, "offset": offset, "storageTypes": kinds, "topologyPaths": racks,
        })
    };
    let all: Vec<Value> = blocks(located.block_bytes, located.length, &range).map(one).collect();
    json!({ "BlockLocations": { "BlockLocation": all } })
}

/// The answer of `GET_BLOCK_LOCATIONS`, with which Hadoop's own client asks.
pub fn located_blocks(located: &Located, range: Range<u64>) -> Value {
    let datanode = |place: &DataserverPlace| {
        let (ip, port) = (place.http.ip().to_string(), place.http.port());
        json!({
            "name": place.http.to_string(), "ipAddr": ip, "hostName": ip,
            "storageID": place.disk.to_string(), "xferPort": port, "infoPort": port,
            "infoSecurePort": 0, "ipcPort": port, "capacity": 0, "dfsUsed": 0, "remaining": 0,
            "nonDfsUsed": 0, "blockPoolUsed": 0, "cacheCapacity": 0, "cacheUsed": 0,
            "lastUpdate": 0, "lastUpdateMonotonic": 0, "xceiverCount": 0,
            "networkLocation": RACK, "adminState": "NORMAL", "upgradeDomain": null,
        })
    };
    let places: Vec<Value> = located.places().map(datanode).collect();
    let kinds = vec!["DISK"; places.len()];
    let (id, of, block) = (located.id.0, located.length, located.block_bytes);
    let one = |(offset, length): (u64, u64)| {
        json!({
            "block": {
                "blockPoolId": "evenfall", "blockId": id, "generationStamp": offset / block,
                "numBytes": length,
            },
            "blockToken": { "urlString": "AAAAAA" }, "cachedLocations": [],
            "isCorrupt": places.is_empty(), "locations": places, "startOffset": offset,
            "storageTypes": kinds,
        })
    };
    let last = of.checked_sub(1).and_then(|last| blocks(block, of, &(last..of)).last()).map(one);
    let all: Vec<Value> = blocks(block, of, &range).map(one).collect();
    json!({ "LocatedBlocks": {
        "fileLength": of, "isLastBlockComplete": true, "isUnderConstruction": false,
        "lastLocatedBlock": last, "locatedBlocks": all,
    } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_those_that_have_a_byte_of_the_range() {
        let of =
            |length, range: Range<u64>| blocks(BLOCK_BYTES, length, &range).collect::<Vec<_>>();
        let length = 2 * BLOCK_BYTES + 5;
        let (first, second) = ((0, BLOCK_BYTES), (BLOCK_BYTES, BLOCK_BYTES));
        assert_eq!(of(length, 0..u64::MAX), [first, second, (2 * BLOCK_BYTES, 5)]);
        assert_eq!(of(length, 1..BLOCK_BYTES), [first]);
        assert_eq!(of(length, BLOCK_BYTES - 1..BLOCK_BYTES + 1), [first, second]);
        assert_eq!(of(length, length - 1..length), [(2 * BLOCK_BYTES, 5)]);
        for (length, range) in [(0, 0..9), (length, 3..3), (length, length..u64::MAX)] {
            assert_eq!(of(length, range), []);
        }
    }
}
