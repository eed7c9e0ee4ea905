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
    pub fn from_hex(id: u8, text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.len() != 64 || !text.is_ascii() {
            return Err(format!("a key is 64 hexadecimal digits, this has {}", text.len()));
        }
        let mut bytes = [0; 32];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16)
                .map_err(|_| format!("digit {} of the key is not hexadecimal", 2 * i + 1))?;
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
