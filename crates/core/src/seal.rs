//! The secret of a run, out of which every protocol derives its own keys.

/// The secret that all nodes of a run share.
#[derive(Clone, PartialEq, Eq)]
pub struct SharedKey {
    id: u8,
    bytes: [u8; 32],
}

impl core::fmt::Debug for SharedKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "SharedKey(id {})", self.id)
    }
}

/// Why a text is no key. The text itself is never shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// The text has so many characters.
    Length(usize),
    /// The digit at this place, from 1, or the digit behind it is not hexadecimal.
    Digit(usize),
}

impl core::fmt::Display for KeyError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Length(length) => {
                write!(f, "a key is 64 hexadecimal digits, this has {length}")
            }
            Self::Digit(place) => write!(f, "digit {place} of the key is not hexadecimal"),
        }
    }
}

impl core::error::Error for KeyError {}

impl SharedKey {
    /// A key from 32 secret bytes. `id` is what the wire calls it; 0 means "no key" there.
    ///
    /// # Panics
    /// When `id` is zero.
    pub fn new(id: u8, bytes: [u8; 32]) -> Self {
        assert!(id != 0, "key id 0 means that there is no key");
        Self { id, bytes }
    }

    /// A key from 64 hexadecimal digits.
    ///
    /// # Errors
    /// What is wrong with the text; never the text itself.
    pub fn from_hex(id: u8, text: &str) -> Result<Self, KeyError> {
        let text = text.trim();
        if text.len() != 64 || !text.is_ascii() {
            return Err(KeyError::Length(text.len()));
        }
        let mut bytes = [0; 32];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16)
                .map_err(|_| KeyError::Digit(2 * i + 1))?;
        }
        Ok(Self::new(id, bytes))
    }

    /// What the wire calls this key.
    pub fn id(&self) -> u8 {
        self.id
    }

    /// The secret bytes, out of which a protocol derives keys of its own.
    pub fn secret(&self) -> &[u8; 32] {
        &self.bytes
    }

    /// The id of this key and 16 secret bytes for another protocol, which `context` names: what is
    /// learned of one says nothing of another.
    pub fn derive(&self, context: &str) -> (u8, [u8; 16]) {
        let derived = blake3::derive_key(context, &self.bytes);
        (self.id, derived[..16].try_into().expect("16 bytes"))
    }
}
