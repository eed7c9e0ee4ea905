//! The messages of rivals: integers and batches, with one codec for all rivals.

use bytes::Bytes;
use evenfall_consensus_machine::Requests;
use evenfall_core::{Malformed, Reader};

/// Requests of the clients of one replica, which stay together in the order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The replica that took the requests.
    pub origin: u32,
    /// The replica's own number of the batch, from 1.
    pub number: u64,
    /// The writes, which are executed first.
    pub writes: Requests,
    /// Reads that are ordered like writes. They come behind the writes of the batch.
    pub reads: Requests,
}

/// A part of a message.
pub trait WireField: Sized {
    /// Appends the bytes of the value.
    fn put(&self, out: &mut Vec<u8>);

    /// Reads a value. Bodies of requests share the bytes of `whole`. The reader reads `whole` too.
    ///
    /// # Errors
    /// [`Malformed`] when the bytes are no such value.
    fn read(r: &mut Reader<'_>, whole: &Bytes) -> Result<Self, Malformed>;

    /// Reads a value that takes the whole message, from the first byte to the last.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn whole(message: &Bytes) -> Result<Self, Malformed> {
        let r = &mut Reader::new(message);
        let value = Self::read(r, message)?;
        r.finish()?;
        Ok(value)
    }
}

impl WireField for u64 {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.to_le_bytes());
    }

    fn read(r: &mut Reader<'_>, _: &Bytes) -> Result<Self, Malformed> {
        r.u64()
    }
}

impl WireField for u32 {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.to_le_bytes());
    }

    fn read(r: &mut Reader<'_>, _: &Bytes) -> Result<Self, Malformed> {
        r.u32()
    }
}

impl WireField for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push((*self).into());
    }

    fn read(r: &mut Reader<'_>, _: &Bytes) -> Result<Self, Malformed> {
        Ok(r.u8()? != 0)
    }
}

impl<A: WireField, B: WireField> WireField for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn read(r: &mut Reader<'_>, whole: &Bytes) -> Result<Self, Malformed> {
        Ok((A::read(r, whole)?, B::read(r, whole)?))
    }
}

impl<T: WireField> WireField for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        self.iter().for_each(|one| one.put(out));
    }

    fn read(r: &mut Reader<'_>, whole: &Bytes) -> Result<Self, Malformed> {
        // The vector grows with each value that is read, so that a wrong count allocates nothing.
        (0..r.u32()?).map(|_| T::read(r, whole)).collect()
    }
}

impl WireField for Requests {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend((self.len() as u16).to_le_bytes());
        out.extend_from_slice(self.as_bytes());
    }

    fn read(r: &mut Reader<'_>, whole: &Bytes) -> Result<Self, Malformed> {
        let count = r.u16()?;
        Self::read(r, whole, count)
    }
}

impl WireField for Batch {
    fn put(&self, out: &mut Vec<u8>) {
        self.origin.put(out);
        self.number.put(out);
        self.writes.put(out);
        self.reads.put(out);
    }

    fn read(r: &mut Reader<'_>, whole: &Bytes) -> Result<Self, Malformed> {
        let (origin, number) = (r.u32()?, r.u64()?);
        Ok(Self {
            origin,
            number,
            writes: WireField::read(r, whole)?,
            reads: WireField::read(r, whole)?,
        })
    }
}

/// Makes an enum of messages a [`WireField`]: a byte for the kind, and the fields in their order.
macro_rules! messages {
    ($(#[$about:meta])* enum $name:ident {
        $($(#[$text:meta])* $kind:ident { $($field:ident: $of:ty),+ },)+
    }) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        enum $name { $($(#[$text])* $kind { $($field: $of),+ },)+ }

        impl $crate::consensus::rivals::wire::WireField for $name {
            fn put(&self, out: &mut Vec<u8>) {
                enum Kind { $($kind),+ }
                match self {
                    $(Self::$kind { $($field),+ } => {
                        out.push(Kind::$kind as u8);
                        $($field.put(out);)+
                    })+
                }
            }

            fn read(
                r: &mut evenfall_core::Reader<'_>,
                whole: &bytes::Bytes,
            ) -> Result<Self, evenfall_core::Malformed> {
                enum Kind { $($kind),+ }
                let kind = r.u8()?;
                $(if kind == Kind::$kind as u8 {
                    $(let $field = $crate::consensus::rivals::wire::WireField::read(r, whole)?;)+
                    return Ok(Self::$kind { $($field),+ });
                })+
                Err(r.malformed("no such message"))
            }
        }
    };
}
pub(super) use messages;
