//! Certificates and keys: one authority per control plane, and what it signs.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

/// A certificate authority whose files live in one directory.
#[derive(Debug)]
pub struct Authority {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

/// The files of a certificate and its key.
#[derive(Debug, Clone)]
pub struct Pair {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    /// Opens the authority in `dir`, making it when it is not there yet.
    pub fn open(dir: &Path, common_name: &str) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let (certificate_file, key_file) = (dir.join("ca.crt"), dir.join("ca.key"));
        if !key_file.exists() {
            let mut params = CertificateParams::new(Vec::new())?;
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
            params.distinguished_name.push(DnType::CommonName, common_name);
            let key = KeyPair::generate()?;
            fs::write(&certificate_file, params.self_signed(&key)?.pem())?;
            // The key comes last: its presence says that the pair is whole.
            write_private(&key_file, &key.serialize_pem())?;
        }
        let key = KeyPair::from_pem(&fs::read_to_string(&key_file)?)?;
        // Only the name and key identifier of the issuer are taken from here; the file stays as it was signed.
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, common_name);
        Ok(Self {
            dir: dir.to_owned(),
            issuer: Issuer::new(params, key),
            certificate: fs::read_to_string(&certificate_file)?,
        })
    }

    /// The authority's own certificate, as PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    pub fn certificate_file(&self) -> PathBuf {
        self.dir.join("ca.crt")
    }

    /// A serving certificate for these names and addresses; kept when it exists.
    pub fn server(&self, name: &str, alternative_names: &[&str]) -> Result<Pair> {
        self.sign(name, alternative_names, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A certificate with which somebody of this name asks others; kept when it exists.
    pub fn client(&self, name: &str) -> Result<Pair> {
        self.sign(name, &[], ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(&self, name: &str, alternative_names: &[&str], usage: ExtendedKeyUsagePurpose) -> Result<Pair> {
        let pair = Pair {
            certificate: self.dir.join(format!("{name}.crt")),
            key: self.dir.join(format!("{name}.key")),
        };
        if !pair.key.exists() {
            let names: Vec<String> = alternative_names.iter().map(ToString::to_string).collect();
            let mut params = CertificateParams::new(names)?;
            params.distinguished_name.push(DnType::CommonName, name);
            params.use_authority_key_identifier_extension = true;
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.extended_key_usages = vec![usage];
            let key = KeyPair::generate()?;
            fs::write(&pair.certificate, params.signed_by(&key, &self.issuer)?.pem())?;
            write_private(&pair.key, &key.serialize_pem())?;
        }
        Ok(pair)
    }

    /// The key pair with which service-account tokens are signed (key) and checked (certificate: a bare public key).
    pub fn service_accounts(&self) -> Result<Pair> {
        let pair = Pair {
            certificate: self.dir.join("service-accounts.pub"),
            key: self.dir.join("service-accounts.key"),
        };
        if !pair.key.exists() {
            let key = KeyPair::generate()?;
            fs::write(&pair.certificate, key.public_key_pem())?;
            write_private(&pair.key, &key.serialize_pem())?;
        }
        Ok(pair)
    }
}

/// Writes a file that only its owner may read, whole or not at all.
pub fn write_private(path: &Path, contents: &str) -> Result<()> {
    // Others that differ from it by their extension are written at the same time.
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = PathBuf::from(temporary);
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .with_context(|| format!("cannot write {}", temporary.display()))?;
    std::io::Write::write_all(&mut file, contents.as_bytes())?;
    fs::rename(&temporary, path).with_context(|| format!("cannot write {}", path.display()))
}
