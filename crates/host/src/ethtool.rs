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

use crate::check::{ChannelCounts, CoalescingFacts, RingSizes};
use crate::checked;

const SIOCETHTOOL: libc::c_ulong = 0x8946;
const GET_DRIVER: u32 = 0x03;
const GET_COALESCING: u32 = 0x0e;
const GET_RINGS: u32 = 0x10;
const GET_STRINGS: u32 = 0x1b;
const GET_COUNTERS: u32 = 0x1d;
const GET_GATHERING: u32 = 0x2b;
const GET_STRING_COUNT: u32 = 0x37;
const GET_FEATURES: u32 = 0x3a;
const GET_CHANNELS: u32 = 0x3c;
/// The set of strings that names counters.
const COUNTER_NAMES: u32 = 1;
/// The set of strings that names features.
const FEATURE_NAMES: u32 = 4;
/// Features of a card whose features are read. Linux 6.18 has 64.
const FEATURES_MAX: usize = 1_024;
/// Bytes of a name.
const NAME_BYTES: usize = 32;
/// Counters of a card whose counters are read. Cards of hundreds of queues have some ten thousand.
const COUNTERS_MAX: usize = 16_384;
/// Words beyond the counted ones, for a driver whose count grows between two questions.
const ROOM: usize = 4_096;

/// A socket by which one interface is asked.
pub(crate) struct DriverQuestions {
    socket: OwnedFd,
    name: [u8; libc::IFNAMSIZ],
}

/// What a driver says of itself.
pub(crate) struct AboutDriver {
    pub(crate) driver: String,
    pub(crate) counters: usize,
}

impl DriverQuestions {
    pub(crate) fn open(interface: &str) -> io::Result<Self> {
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
    pub(crate) fn ask_about(&self) -> io::Result<AboutDriver> {
        let words = self.ask_words::<49>(GET_DRIVER)?;
        let counters = words[45] as usize;
        Ok(AboutDriver { driver: text_of(&words[1..9]), counters })
    }

    /// Checks that the interface exists.
    pub(crate) fn check_interface(&self) -> io::Result<()> {
        match self.ask_about() {
            // An interface whose driver answers nothing exists.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether the kernel gathers datagrams that arrive (GRO).
    pub(crate) fn ask_gathering(&self) -> io::Result<bool> {
        Ok(self.ask_words::<2>(GET_GATHERING)?[1] != 0)
    }

    /// Whether the feature of this name is in force; `None` where the kernel has no such feature.
    pub(crate) fn ask_feature(&self, name: &str) -> io::Result<Option<bool>> {
        // `struct ethtool_sset_info`: a mask of 64 bits, and a count for each bit that is set.
        let mask = (1_u64 << FEATURE_NAMES).to_ne_bytes();
        let half = |at: usize| u32::from_ne_bytes(std::array::from_fn(|n| mask[at + n]));
        let mut words = [GET_STRING_COUNT, 0, half(0), half(4), 0];
        self.ask(&mut words)?;
        let count = words[4] as usize;
        if count > FEATURES_MAX {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let names = self.ask_names(FEATURE_NAMES, count)?;
        let Some(at) = names.iter().position(|known| known == name) else { return Ok(None) };
        // `struct ethtool_gfeatures`: a size, then blocks of four words, of which the third has the
        // features in force.
        let blocks = count.div_ceil(32);
        let mut words = vec![0; 2 + (blocks + ROOM) * 4];
        words[..2].copy_from_slice(&[GET_FEATURES, blocks as u32]);
        self.ask(&mut words)?;
        Ok(Some(words[2 + at / 32 * 4 + 2] >> (at % 32) & 1 == 1))
    }

    /// The first `count` strings of a set.
    fn ask_names(&self, set: u32, count: usize) -> io::Result<Vec<String>> {
        let words_of_name = NAME_BYTES / 4;
        let mut names = vec![0; 3 + (count + ROOM) * words_of_name];
        names[..3].copy_from_slice(&[GET_STRINGS, set, count as u32]);
        self.ask(&mut names)?;
        Ok(names[3..].chunks_exact(words_of_name).take(count).map(text_of).collect())
    }

    /// `struct ethtool_coalesce`.
    pub(crate) fn ask_coalescing(&self) -> io::Result<CoalescingFacts> {
        let words = self.ask_words::<23>(GET_COALESCING)?;
        Ok(CoalescingFacts { receive_us: words[1], is_adaptive: words[10] != 0 })
    }

    /// `struct ethtool_ringparam`.
    pub(crate) fn ask_rings(&self) -> io::Result<RingSizes> {
        let words = self.ask_words::<9>(GET_RINGS)?;
        Ok(RingSizes { receive_max: words[1], receive: words[5] })
    }

    /// `struct ethtool_channels`. Of cards with separate queues for both ways, those for receiving.
    pub(crate) fn ask_channels(&self) -> io::Result<ChannelCounts> {
        let words = self.ask_words::<9>(GET_CHANNELS)?;
        let combined_max = words[4].max(words[1]);
        Ok(ChannelCounts { combined: words[8].max(words[5]), combined_max })
    }

    /// The counters of the driver, by name.
    pub(crate) fn ask_counters(&self, count: usize) -> io::Result<Vec<(String, u64)>> {
        if count > COUNTERS_MAX {
            // The kernel writes all that it has, whatever it was asked for.
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let names = self.ask_names(COUNTER_NAMES, count)?;
        let mut values = vec![0; 2 + (count + ROOM) * 2];
        values[..2].copy_from_slice(&[GET_COUNTERS, count as u32]);
        self.ask(&mut values)?;
        let values = values[2..].chunks_exact(2).map(|words| {
            let bytes: [[u8; 4]; 2] = [words[0].to_ne_bytes(), words[1].to_ne_bytes()];
            u64::from_ne_bytes(bytes.as_flattened().try_into().unwrap_or_default())
        });
        Ok(names.into_iter().zip(values).collect())
    }
}

/// Text that ends with a nul or with the memory.
fn text_of(words: &[u32]) -> String {
    let bytes = words.iter().flat_map(|word| word.to_ne_bytes());
    let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
