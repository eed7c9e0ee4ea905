//! The key of a user of a server. The user has it in a file, and the server in its list of users.

use core::fmt;

use crate::KeyError;
use crate::seal::{secret_from_hex, secret_to_hex};

/// Longest name of a user, which a server repeats in its errors.
pub const USER_NAME_BYTES_MAX: usize = 64;

/// The name of a user and the secret that the user shares with a server.
#[derive(Clone, PartialEq, Eq)]
pub struct UserKey {
    name: String,
    secret: [u8; 32],
}

/// Why a text is no key of a user. The error never shows the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UserKeyError {
    /// There is no name in front of the digits.
    #[error("the key of a user begins with the name of the user; `evenfall store user` writes one")]
    NoName,
    /// The name is empty, too long, or has other characters than those that are allowed.
    #[error(
        "the name of a user has 1 to {USER_NAME_BYTES_MAX} letters, digits, hyphens, dots and \
         underscores of ASCII"
    )]
    Name,
    /// The digits are no key.
    #[error(transparent)]
    Key(KeyError),
}

impl fmt::Debug for UserKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UserKey({})", self.name)
    }
}

impl UserKey {
    /// A key out of its parts.
    ///
    /// # Errors
    /// [`UserKeyError::Name`].
    pub fn new(name: &str, secret: [u8; 32]) -> Result<Self, UserKeyError> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let is_short = (1..=USER_NAME_BYTES_MAX).contains(&name.len());
        match is_short && name.bytes().all(is_allowed) {
            true => Ok(Self { name: name.to_owned(), secret }),
            false => Err(UserKeyError::Name),
        }
    }

    /// A key whose secret is 64 hexadecimal digits.
    ///
    /// # Errors
    /// What is wrong with the name or the digits, without the digits.
    pub fn from_hex(name: &str, digits: &str) -> Result<Self, UserKeyError> {
        Self::new(name, secret_from_hex(digits).map_err(UserKeyError::Key)?)
    }

    /// The key from the text of its file: the name, a space and 64 hexadecimal digits.
    ///
    /// # Errors
    /// As [`from_hex`](Self::from_hex).
    pub fn from_text(text: &str) -> Result<Self, UserKeyError> {
        let (name, digits) = text.trim().split_once(' ').ok_or(UserKeyError::NoName)?;
        Self::from_hex(name, digits)
    }

    /// The text of the file of the key.
    pub fn to_text(&self) -> String {
        format!("{} {}\n", self.name, self.to_hex())
    }

    /// The secret as hexadecimal digits.
    pub fn to_hex(&self) -> String {
        secret_to_hex(&self.secret)
    }

    /// The name of the user.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The secret bytes.
    pub fn secret(&self) -> &[u8; 32] {
        &self.secret
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_key_is_read_back_and_errors_never_show_the_secret() {
        let key = UserKey::new("feed-3.a_b", [7; 32]).unwrap();
        assert_eq!(UserKey::from_text(&key.to_text()), Ok(key.clone()));
        assert_eq!(format!("{key:?}"), "UserKey(feed-3.a_b)");
        let refusal = |text: &str| UserKey::from_text(text).unwrap_err();
        assert_eq!(refusal(&key.to_hex()), UserKeyError::NoName, "a shared key");
        assert_eq!(refusal("ann 07"), UserKeyError::Key(KeyError::Length(2)));
        for name in ["", "a b", "ä", "a/b", &"a".repeat(65)] {
            assert_eq!(UserKey::new(name, [7; 32]), Err(UserKeyError::Name), "{name}");
        }
    }
}
