//! The HTTP server: who may wait for how long, and which path is answered by what.
//!
//! Any client may connect. A connection has a time limit for its headers and for each part of an
//! answer that it does not take; their size is bounded; and of too many connections the oldest is
//! closed. Bodies of requests are not read.

use crate::ask::Asker;
use crate::health::Check;
use crate::live::{Answer, Live};
use crate::metrics::Metrics;
use crate::sys;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    HeaderValue, ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::http::uri::Authority;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, Instant, Sleep};

const MOST_CONNECTIONS: usize = 64;
/// For the whole head of a request, and between two requests.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// For a client that does not take what is sent.
const STALL_LIMIT: Duration = Duration::from_secs(10);
const MOST_HEADERS: usize = 64;
const BUFFER_SIZE: usize = 16 * 1024;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// The page, which asks nobody but this program.
const PAGE: [(&str, &str, &str); 3] = [
    (
        "/",
        "text/html; charset=utf-8",
        include_str!("page/page.html"),
    ),
    (
        "/page.css",
        "text/css; charset=utf-8",
        include_str!("page/page.css"),
    ),
    (
        "/page.js",
        "text/javascript; charset=utf-8",
        include_str!("page/page.js"),
    ),
];
const POLICY: &str =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

// ---- Answers ------------------------------------------------------------------

fn answer(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Answer> {
    let mut response = Response::new(Answer::Whole(Full::new(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn line(status: StatusCode, text: &str) -> Response<Answer> {
    answer(status, TEXT, Bytes::from(format!("{text}\n")))
}

/// Whether a client on this machine that asks for this Host means this machine.
///
/// A browser asks for the name of the page's own site; a site whose name resolves to 127.0.0.1
/// would read all numbers by the browser of whoever opens it (DNS rebinding).
fn means_this_machine(host: Option<&HeaderValue>) -> bool {
    let Some(host) = host else { return true };
    let Some(authority) = host
        .to_str()
        .ok()
        .and_then(|text| text.parse::<Authority>().ok())
    else {
        return false;
    };
    let name = authority
        .host()
        .trim_start_matches('[')
        .trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// What the paths are answered by.
struct Site {
    asker: Arc<Asker>,
    metrics: Metrics,
    live: Arc<Live>,
}

impl Site {
    async fn respond(&self, request: Request<Incoming>, is_local: bool) -> Response<Answer> {
        // HAProxy's checks are OPTIONS unless they are told otherwise.
        let methods = [Method::GET, Method::HEAD, Method::OPTIONS];
        if !methods.contains(request.method()) {
            let mut response = line(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered");
            let allowed = HeaderValue::from_static("GET, HEAD, OPTIONS");
            response.headers_mut().insert(ALLOW, allowed);
            return response;
        }
        let path = request.uri().path();
        if let Some(check) = Check::of(path) {
            let health = self.asker.health().await;
            let (passes, text) = check.passes(&health);
            let status = match passes {
                true => StatusCode::OK,
                false => StatusCode::SERVICE_UNAVAILABLE,
            };
            return line(status, text);
        }
        if is_local && !means_this_machine(request.headers().get(HOST)) {
            let text = "on this machine, ask for localhost or an IP address";
            return line(StatusCode::MISDIRECTED_REQUEST, text);
        }
        if let Some((_, content_type, text)) = PAGE.iter().find(|(at, _, _)| *at == path) {
            return answer(
                StatusCode::OK,
                content_type,
                Bytes::from_static(text.as_bytes()),
            );
        }
        match path {
            "/history" => answer(StatusCode::OK, JSON, self.live.history()),
            // A HEAD would be another page for as long as the client stays.
            "/live" if request.method() == Method::GET => match self.live.open() {
                Some(messages) => {
                    let mut response = answer(StatusCode::OK, "text/event-stream", Bytes::new());
                    *response.body_mut() = messages;
                    response
                }
                None => line(StatusCode::SERVICE_UNAVAILABLE, "too many pages are open"),
            },
            "/metrics" => {
                let numbers = self.asker.numbers().await;
                let body = self.metrics.text(&numbers);
                answer(StatusCode::OK, crate::metrics::CONTENT_TYPE, body)
            }
            _ => line(StatusCode::NOT_FOUND, "not found"),
        }
    }
}

// ---- Connections -----------------------------------------------------------------

/// A client's socket. What it does not take within [`STALL_LIMIT`] ends it.
struct Patient {
    stream: TcpStream,
    limit: Pin<Box<Sleep>>,
    is_stalled: bool,
}

impl Patient {
    fn new(stream: TcpStream) -> Patient {
        Patient {
            stream,
            limit: Box::pin(sleep(STALL_LIMIT)),
            is_stalled: false,
        }
    }

    fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.is_stalled = false;
            return written;
        }
        if !self.is_stalled {
            self.is_stalled = true;
            self.limit.as_mut().reset(Instant::now() + STALL_LIMIT);
        }
        match self.limit.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let it = self.get_mut();
        let written = Pin::new(&mut it.stream).poll_write(context, bytes);
        it.watch(context, written)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let it = self.get_mut();
        let written = Pin::new(&mut it.stream).poll_flush(context);
        it.watch(context, written)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

async fn serve_client(stream: TcpStream, site: Arc<Site>) {
    let is_local = stream
        .local_addr()
        .is_ok_and(|address| address.ip().is_loopback());
    let service = service_fn(move |request| {
        let site = site.clone();
        async move { Ok::<_, Infallible>(site.respond(request, is_local).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .max_headers(MOST_HEADERS)
        .max_buf_size(BUFFER_SIZE);
    let socket = TokioIo::new(Patient::new(stream));
    // The client is told what it can be; there is no other reader of the error.
    let _ = http.serve_connection(socket, service).await;
}

/// The present connections, the oldest first.
struct Connections(VecDeque<JoinHandle<()>>);

impl Connections {
    fn add(&mut self, stream: TcpStream, site: &Arc<Site>) {
        self.0.retain(|task| !task.is_finished());
        if self.0.len() >= MOST_CONNECTIONS {
            if let Some(oldest) = self.0.pop_front() {
                oldest.abort();
            }
        }
        let task = tokio::spawn(serve_client(stream, site.clone()));
        self.0.push_back(task);
    }
}

async fn accept(listener: TcpListener, accepted: mpsc::Sender<TcpStream>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if accepted.send(stream).await.is_err() {
                    return;
                }
            }
            // Out of descriptors or memory, or the client has gone.
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Serves clients for good.
pub async fn serve(listeners: Vec<OwnedFd>, asker: Arc<Asker>) -> anyhow::Result<()> {
    let metrics = Metrics::new();
    let live = Arc::new(Live::default());
    let asked = (live.clone(), asker.clone());
    tokio::spawn(async move { asked.0.run(asked.1).await });
    let site = Arc::new(Site {
        asker,
        metrics,
        live,
    });
    let (accepted, mut clients) = mpsc::channel(1);
    for listener in listeners {
        tokio::spawn(accept(sys::listener(listener)?, accepted.clone()));
    }
    let mut connections = Connections(VecDeque::new());
    while let Some(stream) = clients.recv().await {
        connections.add(stream, &site);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_localhost_and_addresses_mean_this_machine() {
        for host in [
            "localhost:9633",
            "LOCALHOST",
            "127.0.0.1:9633",
            "[::1]:9633",
        ] {
            let host = HeaderValue::from_static(host);
            assert!(means_this_machine(Some(&host)), "{host:?}");
        }
        assert!(means_this_machine(None));
        for host in [
            "example.com",
            "localhost.example.com:9633",
            "",
            "127.0.0.1.example.com",
        ] {
            let host = HeaderValue::from_static(host);
            assert!(!means_this_machine(Some(&host)), "{host:?}");
        }
    }
}
