//! The table `[trust]`: who may write the feed.

#[cfg(feature = "settings")]
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;

use evenfall_core::SharedKey;
use evenfall_feed_formats::sharding::hex;
use evenfall_multicast_machine::{FrameSigner, ReleaseAfter, SignatureVerifier};
use evenfall_runtime::settings::{SettingsError, SettingsMistake};
use serde::{Deserialize, Serialize};

/// The word in front of a public key. A secret key has no such word, so it is refused as a public
/// key.
const PUBLIC: &str = "ed25519:";
/// Public keys of a run. A run has fewer roots. A receiver tries each key on a forged signature.
const SIGNERS_MAX: usize = 16;

/// The table `[trust]`. Without signing keys, receivers take whatever a holder of the shared key
/// wrote for the feed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrustSettings {
    /// File of the secret signing key of a root or standby, which no other host has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signing_key_file: Option<PathBuf>,
    /// Public keys of the root and its standbys.
    pub signers: Vec<String>,
    /// Whether a receiver hands a message on before its signature is checked.
    pub release: ReleaseAfter,
}

impl TrustSettings {
    /// Whether receivers check who wrote the feed.
    pub fn checks(&self) -> bool {
        !self.signers.is_empty()
    }

    /// Checks the public keys.
    pub(super) fn check(&self) -> Result<(), SettingsMistake> {
        let refuse = |why| Err(SettingsMistake::new("trust.signers", why));
        if self.signers.len() > SIGNERS_MAX {
            return refuse(format!("trust.signers: {SIGNERS_MAX} public keys at most"));
        }
        if let Err(error) = self.public_keys() {
            return refuse(error.to_string());
        }
        if self.release == ReleaseAfter::Verified && !self.checks() {
            let why =
                "trust.release = \"verified\" needs trust.signers: there is nothing to verify";
            return Err(SettingsMistake::new("trust.release", why));
        }
        Ok(())
    }

    /// Makes the path begin from `base`.
    #[cfg(feature = "settings")]
    pub(super) fn rebase(&mut self, base: &Path) {
        self.signing_key_file = self.signing_key_file.take().map(|file| base.join(file));
    }

    fn public_keys(&self) -> Result<Vec<[u8; 32]>, SettingsError> {
        let key = |text: &String| {
            let digits = text.strip_prefix(PUBLIC).ok_or_else(|| {
                SettingsError::new(format!(
                    "trust.signers: {PUBLIC}... is a public key; `evenfall key new --signing` \
                     prints one"
                ))
            })?;
            // Behind the word, the text of a public key is that of a shared key.
            let key = SharedKey::from_hex(1, digits);
            let key = key.map_err(|why| SettingsError::new(format!("trust.signers: {why}")))?;
            Ok(*key.secret())
        };
        self.signers.iter().map(key).collect()
    }

    /// The check by the public keys of `signers`; `None` without public keys.
    ///
    /// # Errors
    /// When a key is wrong, or this build lacks signatures.
    pub fn load_verifier(&self) -> Result<Option<Arc<dyn SignatureVerifier>>, SettingsError> {
        match self.public_keys()? {
            none if none.is_empty() => Ok(None),
            keys => verifier_of(&keys).map(Some),
        }
    }

    /// The signer with this root's key; `None` for a feed without signatures.
    ///
    /// # Errors
    /// When receivers check signatures and this root has no key that they know, when the file is no
    /// key or is the shared key, or when this build lacks signatures.
    pub fn load_signer(
        &self,
        shared: Option<&SharedKey>,
    ) -> Result<Option<Arc<dyn FrameSigner>>, SettingsError> {
        let Some(file) = &self.signing_key_file else {
            return match self.checks() {
                false => Ok(None),
                true => Err(SettingsError::new(
                    "trust.signing_key_file: receivers check signatures (trust.signers), and this \
                     root has no key to sign with",
                )),
            };
        };
        let named = |why: String| SettingsError::new(format!("trust.signing_key_file: {why}"));
        let key = evenfall_runtime::settings::read_key(file).map_err(|e| named(e.to_string()))?;
        let shown = file.display();
        if shared.is_some_and(|shared| shared.secret() == key.secret()) {
            return Err(named(format!("{shown} is the shared key, which every node holds")));
        }
        let (signer, public) = signer_of(key.secret())?;
        let known = self.public_keys()?;
        if !known.is_empty() && !known.contains(&public) {
            return Err(named(format!(
                "the public half of {shown} is not in trust.signers, so receivers would refuse \
                 this root"
            )));
        }
        Ok(Some(signer))
    }
}

#[cfg(feature = "signing")]
fn verifier_of(keys: &[[u8; 32]]) -> Result<Arc<dyn SignatureVerifier>, SettingsError> {
    Ok(Arc::new(crate::signing::RootKeys::new(keys)))
}

#[cfg(feature = "signing")]
fn signer_of(secret: &[u8; 32]) -> Result<(Arc<dyn FrameSigner>, [u8; 32]), SettingsError> {
    let key = crate::signing::SigningKey::new(secret);
    let public = key.public_key();
    Ok((Arc::new(key), public))
}

#[cfg(not(feature = "signing"))]
fn lacking() -> SettingsError {
    SettingsError::new("[trust]: this build lacks signatures (feature signing)")
}

#[cfg(not(feature = "signing"))]
fn verifier_of(_: &[[u8; 32]]) -> Result<Arc<dyn SignatureVerifier>, SettingsError> {
    Err(lacking())
}

#[cfg(not(feature = "signing"))]
fn signer_of(_: &[u8; 32]) -> Result<(Arc<dyn FrameSigner>, [u8; 32]), SettingsError> {
    Err(lacking())
}

/// The text of a public key, as `trust.signers` has it.
pub fn public_text(key: &[u8; 32]) -> String {
    format!("{PUBLIC}{}", hex(key))
}
