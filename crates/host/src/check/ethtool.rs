//! Questions to the driver of a network card, as ethtool asks them.
//!
//! A question is a block of memory that begins with the number of the question. The kernel fills in
//! the rest:
//!
//! ```text
//!  u32 question | u32 ... answers, in the order of <linux/ethtool.h>
//! ```

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::card::{ChannelCounts, CoalescingFacts, RingSizes};
use crate::checked;

const SIOCETHTOOL: libc::c_ulong = 0x8946;
const GET_DRIVER: u32 = 0x03;
const GET_COALESCING: u32 = 0x0e;
const GET_RINGS: u32 = 0x10;
const GET_STRINGS: u32 = 0x1b;
const GET_COUNTERS: u32 = 0x1d;
const GET_CHANNELS: u32 = 0x3c;
/// The set of strings that names counters.
const COUNTER_NAMES: u32 = 1;
/// Bytes of a name.
const NAME_BYTES: usize = 32;
/// Counters of a card whose counters are read. Cards of hundreds of queues have some ten thousand.
const COUNTERS_MAX: usize = 16_384;
/// Words beyond the counted ones, for a driver whose count grows between two questions.
const ROOM: usize = 4_096;

/// A socket by which one interface is asked.
pub(super) struct DriverQuestions {
    socket: OwnedFd,
    name: [u8; libc::IFNAMSIZ],
}

/// What a driver says of itself.
pub(super) struct AboutDriver {
    pub(super) driver: String,
    pub(super) counters: usize,
}

impl DriverQuestions {
    pub(super) fn open(interface: &str) -> io::Result<Self> {
        let mut name = [0; libc::IFNAMSIZ];
        if interface.len() >= name.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        name[..interface.len()].copy_from_slice(interface.as_bytes());
        // SAFETY: the call takes plain numbers.
        let socket =
            unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        // SAFETY: the descriptor was opened just now and has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(checked(socket)?) };
        Ok(Self { socket, name })
    }

    /// Asks one question. The memory begins with its number and is as long as the longest answer.
    fn ask(&self, memory: &mut [u32]) -> io::Result<()> {
        // SAFETY: all zeros are a valid request.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(self.name) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = memory.as_mut_ptr().cast();
        // SAFETY: the request lives through the call, and its memory is as long as the answer to
        // the question: the callers size it by <linux/ethtool.h>, with room for a longer list.
        checked(unsafe { libc::ioctl(self.socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) })
            .map(drop)
    }

    /// An answer of so many words, the question among them.
    fn ask_words<const WORDS: usize>(&self, question: u32) -> io::Result<[u32; WORDS]> {
        let mut words = [0; WORDS];
        words[0] = question;
        self.ask(&mut words)?;
        Ok(words)
    }

    /// `struct ethtool_drvinfo`: the name behind the question, the count of counters near the end.
    pub(super) fn ask_about(&self) -> io::Result<AboutDriver> {
        let words = self.ask_words::<49>(GET_DRIVER)?;
        let counters = words[45] as usize;
        Ok(AboutDriver { driver: text_of(&words[1..9]), counters })
    }

    /// `struct ethtool_coalesce`.
    pub(super) fn ask_coalescing(&self) -> io::Result<CoalescingFacts> {
        let words = self.ask_words::<23>(GET_COALESCING)?;
        Ok(CoalescingFacts { receive_us: words[1], is_adaptive: words[10] != 0 })
    }

    /// `struct ethtool_ringparam`.
    pub(super) fn ask_rings(&self) -> io::Result<RingSizes> {
        let words = self.ask_words::<9>(GET_RINGS)?;
        Ok(RingSizes { receive_max: words[1], receive: words[5] })
    }

    /// `struct ethtool_channels`. Of cards with separate queues for both ways, those for receiving.
    pub(super) fn ask_channels(&self) -> io::Result<ChannelCounts> {
        let words = self.ask_words::<9>(GET_CHANNELS)?;
        let combined_max = words[4].max(words[1]);
        Ok(ChannelCounts { combined: words[8].max(words[5]), combined_max })
    }

    /// The counters of the driver, by name.
    pub(super) fn ask_counters(&self, count: usize) -> io::Result<Vec<(String, u64)>> {
        if count > COUNTERS_MAX {
            // The kernel writes all that it has, whatever it was asked for.
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let words_of_name = NAME_BYTES / 4;
        let mut names = vec![0; 3 + (count + ROOM) * words_of_name];
        names[..3].copy_from_slice(&[GET_STRINGS, COUNTER_NAMES, count as u32]);
        self.ask(&mut names)?;
        let mut values = vec![0; 2 + (count + ROOM) * 2];
        values[..2].copy_from_slice(&[GET_COUNTERS, count as u32]);
        self.ask(&mut values)?;
        let names = names[3..].chunks_exact(words_of_name);
        let values = values[2..].chunks_exact(2).map(|words| {
            let bytes: [[u8; 4]; 2] = [words[0].to_ne_bytes(), words[1].to_ne_bytes()];
            u64::from_ne_bytes(bytes.as_flattened().try_into().unwrap_or_default())
        });
        Ok(names.map(text_of).zip(values).take(count).collect())
    }
}

/// Text that ends with a nul or with the memory.
fn text_of(words: &[u32]) -> String {
    let bytes = words.iter().flat_map(|word| word.to_ne_bytes());
    let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
