//! Reads bytes from outside without a panic.

use crate::Malformed;

/// Reads little-endian integers one after the other. The reader never passes the end.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Starts at the first byte.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The next `n` bytes.
    ///
    /// # Errors
    /// [`Malformed`] when fewer bytes are left. Nothing is read then. All methods that read behave
    /// like this.
    #[inline]
    pub fn take(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        let end = self.at.checked_add(n).filter(|&end| end <= self.bytes.len());
        let Some(end) = end else {
            return Err(Malformed { what: "truncated", offset: self.bytes.len() });
        };
        let slice = &self.bytes[self.at..end];
        self.at = end;
        Ok(slice)
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        Ok(self.take(N)?.try_into().expect("take returns what was asked for"))
    }

    /// One byte.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    #[inline]
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    /// Two bytes.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    #[inline]
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    /// Four bytes.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    #[inline]
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    /// Eight bytes.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    #[inline]
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    /// Eight bytes with a sign.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    #[inline]
    pub fn i64(&mut self) -> Result<i64, Malformed> {
        self.array().map(i64::from_le_bytes)
    }

    /// An error at the place of the last read.
    pub fn malformed(&self, what: &'static str) -> Malformed {
        Malformed { what, offset: self.at }
    }

    /// Checks that all bytes were read.
    ///
    /// # Errors
    /// [`Malformed`] when bytes are left.
    #[inline]
    pub fn finish(&self) -> Result<(), Malformed> {
        if self.at == self.bytes.len() { Ok(()) } else { Err(self.malformed("bytes left over")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_come_in_order_and_the_end_is_an_error_with_its_place() {
        let mut r = Reader::new(&[1, 2, 0, 3, 0, 0, 0, 255]);
        assert_eq!((r.u8(), r.u16(), r.u32()), (Ok(1), Ok(2), Ok(3)));
        assert_eq!(r.finish(), Err(Malformed { what: "bytes left over", offset: 7 }));
        let end = Err(Malformed { what: "truncated", offset: 8 });
        assert_eq!((r.u16(), r.take(usize::MAX).map(<[u8]>::len)), (end, end.map(usize::from)));
        assert_eq!((r.u8(), r.finish()), (Ok(255), Ok(())), "a failed read has read nothing");
    }
}
