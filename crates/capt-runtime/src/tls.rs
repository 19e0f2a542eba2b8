//! TLS for the metrics: a listener for axum, and its certificate, which is read again when its files change.

use std::{
    fmt, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::Context;
use axum::serve::Listener;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// Who has not finished a handshake by then is not going to.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Handshakes at the same time; more wait in the kernel.
const MAX_HANDSHAKES: usize = 32;
/// How often the files are looked at. The kubelet brings a renewed certificate within a minute or so.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Where the certificate comes from.
pub(crate) enum Certificate {
    /// `tls.crt` and `tls.key`, as in a Secret of type `kubernetes.io/tls`.
    Files {
        certificate: PathBuf,
        key: PathBuf,
        /// When the loaded pair was written.
        written: Option<SystemTime>,
    },
    /// Made at the start, known to nobody: the traffic is hidden, and the scraper has to skip verification.
    SelfSigned,
}

impl Certificate {
    pub(crate) fn new(dir: Option<&Path>) -> Self {
        match dir {
            Some(dir) => Self::Files {
                certificate: dir.join("tls.crt"),
                key: dir.join("tls.key"),
                written: None,
            },
            None => Self::SelfSigned,
        }
    }

    fn load(&mut self) -> anyhow::Result<Arc<ServerConfig>> {
        let (chain, key) = match self {
            Self::Files {
                certificate,
                key,
                written,
            } => {
                *written = modified(certificate, key);
                let chain = CertificateDer::pem_file_iter(&certificate)
                    .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                    .with_context(|| format!("cannot read the certificate {}", certificate.display()))?;
                let key = PrivateKeyDer::from_pem_file(&key)
                    .with_context(|| format!("cannot read the private key {}", key.display()))?;
                (chain, key)
            }
            Self::SelfSigned => {
                let name = std::env::var("HOSTNAME").unwrap_or_else(|_| "localhost".into());
                let made = rcgen::generate_simple_self_signed([name]).context("cannot make a certificate")?;
                let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
                (vec![made.cert.der().clone()], key)
            }
        };
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .context("no TLS version is available")?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .context("certificate and private key cannot be used together")?;
        Ok(Arc::new(config))
    }

    fn has_changed(&self) -> bool {
        match self {
            Self::Files {
                certificate,
                key,
                written,
            } => modified(certificate, key) != *written,
            Self::SelfSigned => false,
        }
    }
}

/// When the newer of the two was written; `None` while one is missing.
fn modified(certificate: &Path, key: &Path) -> Option<SystemTime> {
    let written = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    Some(written(certificate)?.max(written(key)?))
}

/// Accepts connections and hands them out once their handshake is done. Handshakes run beside each other: one client that
/// says nothing does not keep the others waiting.
pub(crate) struct TlsListener {
    listener: TcpListener,
    certificate: Certificate,
    acceptor: TlsAcceptor,
    looked: Instant,
    handshakes: JoinSet<io::Result<(TlsStream<TcpStream>, SocketAddr)>>,
}

impl TlsListener {
    pub(crate) fn new(listener: TcpListener, mut certificate: Certificate) -> anyhow::Result<Self> {
        let config = certificate.load()?;
        Ok(Self {
            listener,
            certificate,
            acceptor: config.into(),
            looked: Instant::now(),
            handshakes: JoinSet::new(),
        })
    }

    fn refresh(&mut self) {
        if self.looked.elapsed() < LOOK_AGAIN {
            return;
        }
        self.looked = Instant::now();
        if !self.certificate.has_changed() {
            return;
        }
        match self.certificate.load() {
            Ok(config) => {
                self.acceptor = config.into();
                tracing::info!("the certificate of the metrics was read again");
            }
            // The files may be half-way through a change. The old certificate serves meanwhile.
            Err(error) => tracing::warn!(
                error = format!("{error:#}"),
                "the new certificate of the metrics is not used"
            ),
        }
    }

    fn shake_hands(&mut self, stream: TcpStream, peer: SocketAddr) {
        self.refresh();
        let handshake = self.acceptor.accept(stream);
        self.handshakes.spawn(async move {
            let stream = timeout(HANDSHAKE, handshake).await.map_err(io::Error::from)??;
            Ok((stream, peer))
        });
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let has_room = self.handshakes.len() < MAX_HANDSHAKES;
            tokio::select! {
                (stream, peer) = Listener::accept(&mut self.listener), if has_room => self.shake_hands(stream, peer),
                Some(done) = self.handshakes.join_next() => match done {
                    Ok(Ok(connection)) => return connection,
                    Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                    Err(error) => tracing::warn!(%error, "a TLS handshake died"),
                },
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl fmt::Debug for TlsListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsListener").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, names: &str) {
        let made = rcgen::generate_simple_self_signed([names.to_owned()]).unwrap();
        std::fs::write(dir.join("tls.crt"), made.cert.pem()).unwrap();
        std::fs::write(dir.join("tls.key"), made.signing_key.serialize_pem()).unwrap();
    }

    #[test]
    fn a_certificate_is_loaded_and_its_renewal_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let mut certificate = Certificate::new(Some(dir.path()));
        let missing = format!("{:#}", certificate.load().unwrap_err());
        assert!(missing.contains("tls.crt"), "{missing}");
        write(dir.path(), "first");
        assert!(certificate.has_changed());
        certificate.load().unwrap();
        assert!(!certificate.has_changed());
        let later = SystemTime::now() + Duration::from_secs(60);
        let file = std::fs::File::options()
            .write(true)
            .open(dir.path().join("tls.crt"))
            .unwrap();
        file.set_modified(later).unwrap();
        assert!(certificate.has_changed());
    }

    #[test]
    fn a_key_that_does_not_fit_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "first");
        let other = rcgen::generate_simple_self_signed(["other".to_owned()]).unwrap();
        std::fs::write(dir.path().join("tls.key"), other.signing_key.serialize_pem()).unwrap();
        assert!(Certificate::new(Some(dir.path())).load().is_err());
    }
}
