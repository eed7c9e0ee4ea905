//! The field types of ITCH 5.0: fixed-width, big-endian, read in place.

use core::fmt;

/// A value of fixed width on the wire. `bytes` is always exactly `WIDTH` long.
pub(crate) trait Wire: Copy {
    /// Bytes on the wire.
    const WIDTH: usize;
    /// Reads the value; every pattern of bytes is one.
    fn read(bytes: &[u8]) -> Self;
    /// Writes the value.
    fn write(self, bytes: &mut [u8]);
}

macro_rules! integer {
    ($($int:ty),*) => {$(
        impl Wire for $int {
            const WIDTH: usize = size_of::<$int>();
            #[inline]
            fn read(bytes: &[u8]) -> Self {
                let mut raw = [0; size_of::<$int>()];
                raw.copy_from_slice(bytes);
                <$int>::from_be_bytes(raw)
            }
            #[inline]
            fn write(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_be_bytes());
            }
        }
    )*};
}
integer!(u16, u32, u64);

/// A price in units of 1/10,000 dollar ("Price (4)").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Price4(pub u32);

/// A price in units of 1/100,000,000 dollar ("Price (8)").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Price8(pub u64);

/// A one-letter code; which letters a field takes is said at the field.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Code(pub u8);

/// Left-justified text, padded with spaces on the right.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Alpha<const N: usize>(pub [u8; N]);

/// A security symbol.
pub type Stock = Alpha<8>;

/// A market participant identifier.
pub type Mpid = Alpha<4>;

impl Wire for Price4 {
    const WIDTH: usize = 4;
    #[inline]
    fn read(bytes: &[u8]) -> Self {
        Self(u32::read(bytes))
    }
    #[inline]
    fn write(self, bytes: &mut [u8]) {
        self.0.write(bytes);
    }
}

impl Wire for Price8 {
    const WIDTH: usize = 8;
    #[inline]
    fn read(bytes: &[u8]) -> Self {
        Self(u64::read(bytes))
    }
    #[inline]
    fn write(self, bytes: &mut [u8]) {
        self.0.write(bytes);
    }
}

impl Wire for Code {
    const WIDTH: usize = 1;
    #[inline]
    fn read(bytes: &[u8]) -> Self {
        Self(bytes[0])
    }
    #[inline]
    fn write(self, bytes: &mut [u8]) {
        bytes[0] = self.0;
    }
}

impl<const N: usize> Wire for Alpha<N> {
    const WIDTH: usize = N;
    #[inline]
    fn read(bytes: &[u8]) -> Self {
        let mut raw = [0; N];
        raw.copy_from_slice(bytes);
        Self(raw)
    }
    #[inline]
    fn write(self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.0);
    }
}

impl<const N: usize> Alpha<N> {
    /// The text padded with spaces; `None` when it is longer than `N` bytes or not printable
    /// ASCII.
    pub fn new(text: &str) -> Option<Self> {
        let printable = text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
        if text.len() > N || !printable {
            return None;
        }
        let mut raw = [b' '; N];
        raw[..text.len()].copy_from_slice(text.as_bytes());
        Some(Self(raw))
    }

    /// The bytes without the padding.
    pub fn trimmed(&self) -> &[u8] {
        let padding = self.0.iter().rev().take_while(|&&byte| byte == b' ').count();
        &self.0[..N - padding]
    }
}

impl<const N: usize> Default for Alpha<N> {
    fn default() -> Self {
        Self([b' '; N])
    }
}

/// Text goes into CSV, so a comma, a quote or anything unprintable is shown as `\xNN`.
fn write_escaped(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|&byte| match byte {
        b',' | b'"' | b'\\' => write!(f, "\\x{byte:02x}"),
        b' '..=b'~' => write!(f, "{}", char::from(byte)),
        _ => write!(f, "\\x{byte:02x}"),
    })
}

impl<const N: usize> fmt::Display for Alpha<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_escaped(f, self.trimmed())
    }
}

impl<const N: usize> fmt::Debug for Alpha<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_escaped(f, &[self.0])
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{self}'")
    }
}

impl fmt::Display for Price4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:04}", self.0 / 10_000, self.0 % 10_000)
    }
}

impl fmt::Display for Price8 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:08}", self.0 / 100_000_000, self.0 % 100_000_000)
    }
}
