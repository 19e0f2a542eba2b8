//! A door between a client and the API server that a test can shut: the network failures that a process meets.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use kube::Config;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    Open,
    /// Connections break off, and new ones are closed at once.
    Refusing,
    /// Connections stay open, but nothing gets through: the failure that only a timeout finds.
    Silent,
}

pub(crate) struct Gate {
    address: SocketAddr,
    door: watch::Sender<Door>,
}

impl Gate {
    /// Listens in front of the API server of `config`.
    pub(crate) async fn new(config: &Config) -> Result<Self> {
        let target = config
            .cluster_url
            .authority()
            .context("no server in the kubeconfig")?
            .to_string();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let door = watch::Sender::new(Door::Open);
        let doors = door.clone();
        tokio::spawn(async move {
            while let Ok((inside, _)) = listener.accept().await {
                tokio::spawn(carry(inside, target.clone(), doors.subscribe()));
            }
        });
        Ok(Self { address, door })
    }

    pub(crate) fn set(&self, door: Door) {
        self.door.send_replace(door);
    }

    /// `config`, but through this gate.
    pub(crate) fn config(&self, config: &Config) -> Result<Config> {
        let mut through = config.clone();
        let host = config.cluster_url.host().context("no host in the kubeconfig")?;
        through.tls_server_name = Some(config.tls_server_name.clone().unwrap_or_else(|| host.to_string()));
        through.cluster_url = format!("https://{}", self.address).parse()?;
        Ok(through)
    }
}

async fn carry(mut inside: TcpStream, target: String, mut door: watch::Receiver<Door>) {
    let Ok(mut outside) = TcpStream::connect(target).await else {
        return;
    };
    loop {
        let state = *door.borrow_and_update();
        match state {
            Door::Refusing => return,
            Door::Silent => {
                if door.changed().await.is_err() {
                    return;
                }
            }
            Door::Open => {
                tokio::select! {
                    _ = copy_bidirectional(&mut inside, &mut outside) => return,
                    changed = door.changed() => if changed.is_err() { return },
                }
            }
        }
    }
}
