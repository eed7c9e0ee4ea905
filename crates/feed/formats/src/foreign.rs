//! Files that are not read, by name: what the first bytes say, and the way to a file that is read.
//!
//! A person who gives a packed file, a capture of another tool or an older version of a feed needs
//! its name and one command. The first bytes in hex help nobody.

use crate::error::FeedFault;
use crate::itch::ItchKind;

/// A kind of file that is known and not read.
struct ForeignFile {
    /// The words behind "this is".
    name: &'static str,
    advice: &'static str,
}

/// A foreign file whose beginning has fixed bytes at a fixed place.
struct ForeignMagic {
    offset: usize,
    bytes: &'static [u8],
    file: ForeignFile,
}

const fn magic(bytes: &'static [u8], name: &'static str, advice: &'static str) -> ForeignMagic {
    magic_at(0, bytes, name, advice)
}

const fn magic_at(
    offset: usize,
    bytes: &'static [u8],
    name: &'static str,
    advice: &'static str,
) -> ForeignMagic {
    ForeignMagic { offset, bytes, file: ForeignFile { name, advice } }
}

const CONVERT_CAPTURE: &str = "convert it first: editcap -F pcap FILE NEW.pcap";
const NO_FEED: &str = "give ITCH 5.0, a capture or a message file of LOBSTER";
const TABLE: &str = "evenfall reads the venue's own messages: give the feed file that the table \
                     was made of, or import its rows with `evenfall store append --csv`";
const DATABENTO: &str = "evenfall reads the venue's own messages: ask Databento for the capture \
                         (pcap), or write CSV with `dbn` and import it with `evenfall store \
                         append --csv`";
const NO_TEXT: &str = "convert it to UTF-8 first: iconv -f UTF-16 -t UTF-8 FILE";

/// The magics, the longer one first where two begin alike.
const MAGICS: &[ForeignMagic] = &[
    magic(
        b"\x28\xb5\x2f\xfd",
        "zstd",
        "unpack it, or give it by a pipe: zstd -dc FILE | evenfall feed info -",
    ),
    magic(
        b"BZh",
        "bzip2",
        "unpack it, or give it by a pipe: bzip2 -dc FILE | evenfall feed info -",
    ),
    magic(
        b"\xfd7zXZ\0",
        "xz",
        "unpack it, or give it by a pipe: xz -dc FILE | evenfall feed info -",
    ),
    magic(
        b"\x04\x22\x4d\x18",
        "lz4",
        "unpack it, or give it by a pipe: lz4 -dc FILE | evenfall feed info -",
    ),
    magic(
        b"7z\xbc\xaf\x27\x1c",
        "a 7z archive",
        "unpack it, or give one of its files by a pipe: 7z x -so FILE NAME | evenfall feed info -",
    ),
    magic(
        b"Rar!\x1a\x07",
        "a rar archive",
        "unpack it, or give one of its files by a pipe: unrar p -inul FILE NAME | evenfall feed \
         info -",
    ),
    magic(b"LZIP", "lzip", "unpack it, or give it by a pipe: lzip -dc FILE | evenfall feed info -"),
    magic(
        b"\x1f\x9d",
        "a file of compress (.Z)",
        "unpack it, or give it by a pipe: gzip -dc FILE | evenfall feed info -",
    ),
    magic(b"PK\x05\x06", "a zip without entries", "give an archive with a feed in it"),
    magic(
        b"PK\x07\x08",
        "a part of a zip of several volumes",
        "put the volumes together first: zip -s 0 FILE --out WHOLE.zip",
    ),
    magic_at(
        257,
        b"ustar",
        "a tar archive",
        "give one of its files by a pipe: tar -xOf FILE NAME | evenfall feed info -",
    ),
    magic(b"DBN", "a DBN file of Databento", DATABENTO),
    magic_at(8, b"DBZ", "a DBZ file of Databento", DATABENTO),
    magic(b"snoop\0\0\0", "a snoop capture", CONVERT_CAPTURE),
    magic(b"GMBU", "a capture of Microsoft Network Monitor", CONVERT_CAPTURE),
    magic(b"RTSS", "a capture of Microsoft Network Monitor", CONVERT_CAPTURE),
    magic(b"TRSNIFF data", "a capture of Sniffer", CONVERT_CAPTURE),
    magic(b"XCP\0", "a capture of NetXRay", CONVERT_CAPTURE),
    magic(b"PAR1", "a Parquet file", TABLE),
    magic(b"ARROW1", "an Arrow file", TABLE),
    magic(b"FEA1", "a Feather file", TABLE),
    magic(b"\x89HDF\r\n\x1a\n", "an HDF5 file", TABLE),
    magic(b"SQLite format 3\0", "an SQLite database", TABLE),
    magic(b"\x93NUMPY", "a NumPy array", TABLE),
    magic(b"\xff\xfe", "text in UTF-16", NO_TEXT),
    magic(b"\xfe\xff", "text in UTF-16", NO_TEXT),
    magic(b"%PDF", "a PDF document", NO_FEED),
];

/// A foreign file that is told by its structure.
struct ForeignShape {
    is_shape: fn(&[u8]) -> bool,
    file: ForeignFile,
}

const fn shape(
    is_shape: fn(&[u8]) -> bool,
    name: &'static str,
    advice: &'static str,
) -> ForeignShape {
    ForeignShape { is_shape, file: ForeignFile { name, advice } }
}

const SHAPES: &[ForeignShape] = &[
    shape(is_itch_4, "ITCH 4.1 or older, whose times stand in messages of their own", {
        "evenfall reads ITCH 5.0: give a file of 5.0 (from 2014 on), whose messages have 11 bytes \
         of type, locate, number and time in front"
    }),
    shape(
        is_soup_bin,
        "a stream of SoupBinTCP packets",
        "write the messages of its sequenced packets, without the packet type, behind 2-byte \
         big-endian lengths",
    ),
    shape(
        is_itch_behind_long_lengths,
        "ITCH 5.0 behind 4-byte lengths",
        "write the lengths with 2 bytes, big-endian",
    ),
    shape(
        is_itch_without_lengths,
        "ITCH 5.0 without lengths",
        "write a 2-byte big-endian length in front of each message",
    ),
    shape(is_erf, "an Endace ERF capture", CONVERT_CAPTURE),
    shape(
        is_order_book_csv,
        "LOBSTER order book CSV or another table of whole numbers",
        "give the message file that lies beside it (its name has \"message\")",
    ),
    shape(is_markup, "a web page or XML, perhaps in the place of a download", {
        "fetch the file again and look at what the server said"
    }),
    shape(is_json, "JSON", NO_FEED),
    shape(is_zeros, "a file of zero bytes", "fetch the file again"),
    shape(is_csv, "a CSV table with other columns than those of LOBSTER's message file", {
        "import its rows with `evenfall store append --csv`, or give the message file of LOBSTER \
         (its name has \"message\")"
    }),
    shape(is_text, "text of no format that is read", NO_FEED),
];

/// The fault of a file that is known by a magic and not read. With `is_structure_asked`, the file
/// may also be told by its structure, which takes a few bytes of another format by chance.
pub(crate) fn fault_of(head: &[u8], is_structure_asked: bool) -> Option<FeedFault> {
    let by_magic = MAGICS
        .iter()
        .find(|magic| head.get(magic.offset..).is_some_and(|head| head.starts_with(magic.bytes)));
    let by_shape = || SHAPES.iter().find(|shape| is_structure_asked && (shape.is_shape)(head));
    let file = by_magic.map(|magic| &magic.file).or_else(|| by_shape().map(|shape| &shape.file))?;
    Some(FeedFault::Refused { what: format!("this is {}", file.name), advice: file.advice })
}

/// A message of this type and length of ITCH 5.0.
fn is_itch(letter: Option<&u8>, length: usize) -> bool {
    letter
        .and_then(|letter| ItchKind::from_letter(*letter))
        .is_some_and(|kind| kind.length() == length)
}

/// Files of ITCH 4 begin with the time of their first second: type T, four bytes of seconds.
fn is_itch_4(head: &[u8]) -> bool {
    head.starts_with(&[0, 5, b'T'])
}

/// The length of a packet of SoupBinTCP counts the packet's type. S and U hold a message.
fn is_soup_bin(head: &[u8]) -> bool {
    let mut rest = head;
    let mut messages = 0;
    while let [high, low, packet, tail @ ..] = rest {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let Some(after) = (length > 0).then(|| tail.get(length - 1..)).flatten() else { break };
        match packet {
            b'S' | b'U' if is_itch(tail.first(), length - 1) => messages += 1,
            // Debug text, log-in, its answers, heartbeats, end of session, log-out.
            b'+' | b'L' | b'A' | b'J' | b'H' | b'R' | b'Z' | b'O' => {}
            _ => return false,
        }
        rest = after;
    }
    messages > 0
}

fn is_itch_behind_long_lengths(head: &[u8]) -> bool {
    let Some((length, rest)) = head.split_first_chunk() else { return false };
    let lengths = [u32::from_be_bytes(*length), u32::from_le_bytes(*length)];
    lengths.iter().any(|length| is_itch(rest.first(), *length as usize))
}

/// Messages one behind the other, because a single letter is text as well.
fn is_itch_without_lengths(head: &[u8]) -> bool {
    /// The first of six bytes of a time of day in nanoseconds is at most this.
    const TIME_HIGH_MAX: u8 = 0x4e;
    if is_text(head) {
        return false;
    }
    let mut rest = head;
    let mut messages = 0;
    while let Some(kind) = rest.first().and_then(|letter| ItchKind::from_letter(*letter)) {
        let Some(message) = rest.get(..kind.length()) else { break };
        if message[5] > TIME_HIGH_MAX {
            return false;
        }
        messages += 1;
        rest = &rest[kind.length()..];
    }
    // The last message may be cut by the end of the bytes that are looked at.
    let is_cut = rest.first().is_none_or(|letter| ItchKind::from_letter(*letter).is_some());
    is_cut && messages > 1
}

/// ERF has no magic. A record begins with its time in 2^-32 seconds, its type, flags, its length
/// and the length on the wire.
fn is_erf(head: &[u8]) -> bool {
    /// Bytes of the head of a record.
    const RECORD_HEAD_BYTES: usize = 16;
    /// The highest type that Endace has given.
    const TYPE_MAX: u8 = 48;
    let record = |at: usize| {
        let head: &[u8; RECORD_HEAD_BYTES] = head.get(at..)?.first_chunk()?;
        let seconds = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        let length = usize::from(u16::from_be_bytes([head[10], head[11]]));
        // From 1990 on, a record of a known type that holds its own head.
        let is_record = seconds > 631_152_000
            && (1..=TYPE_MAX).contains(&(head[8] & 0x7f))
            && length > RECORD_HEAD_BYTES;
        is_record.then_some(at + length)
    };
    let is_followed = |next| next + RECORD_HEAD_BYTES > head.len() || record(next).is_some();
    // Letters and digits make times after 1990 and lengths as well.
    !is_text(head) && record(0).is_some_and(is_followed)
}

/// Order book files of LOBSTER have four whole numbers a level.
fn is_order_book_csv(head: &[u8]) -> bool {
    let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default().trim_ascii_end();
    let mut fields = 0;
    let is_whole = line.split(|&byte| byte == b',').all(|field| {
        fields += 1;
        let digits = field.strip_prefix(b"-").unwrap_or(field);
        !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
    });
    is_whole && fields >= 4
}

fn is_markup(head: &[u8]) -> bool {
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    text.starts_with(b"<!") || text.starts_with(b"<?xml") || text.starts_with(b"<html")
}

fn is_json(head: &[u8]) -> bool {
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    matches!(text, [b'{', b'"' | b'\r' | b'\n' | b' ', ..] | [b'[', b'{' | b'\n' | b' ', ..])
}

/// Whether the bytes are UTF-8 without control characters other than white space. The last letter
/// may be cut. Records of captures and of binary feeds are no text, because of the high bytes of
/// their lengths and numbers.
fn is_text(head: &[u8]) -> bool {
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        Err(cut) if cut.error_len().is_none() => {
            std::str::from_utf8(&head[..cut.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    let is_of_text = |letter: char| !letter.is_control() || letter.is_ascii_whitespace();
    !text.is_empty() && text.chars().all(is_of_text)
}

/// Whether the first two lines have the same number of fields, two or more. A second line that is
/// the last one may be cut, and is not compared.
fn is_csv(head: &[u8]) -> bool {
    let fields = |line: &[u8]| line.split(|&byte| byte == b',').count();
    let mut lines = head.split(|&byte| byte == b'\n');
    let first = lines.next().map_or(0, fields);
    let (second, third) = (lines.next(), lines.next());
    let is_like = second.filter(|_| third.is_some()).is_none_or(|line| fields(line) == first);
    is_text(head) && first > 1 && is_like
}

fn is_zeros(head: &[u8]) -> bool {
    head.len() > 2 && head.iter().all(|byte| *byte == 0)
}
