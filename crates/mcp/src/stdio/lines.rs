//! The lines that a child process writes and reads, in its encoding. Messages are JSON, in which every character that is not
//! ASCII can be escaped, so every encoding can carry every message.

use std::fmt::Write as _;

use encoding_rs::{Decoder, Encoding, UTF_8, UTF_16BE, UTF_16LE};
use tokio::{
    io::{AsyncReadExt, BufReader},
    process::ChildStdout,
};

use super::MAX_LINE;

/// Bytes that are read at once.
const CHUNK: usize = 64 * 1024;

/// The error for a line over the limit. Nothing after it is read.
#[derive(Debug, thiserror::Error)]
#[error("the server wrote a line over {MAX_LINE} bytes")]
pub(super) struct TooLong;

/// The lines of a child's standard output.
pub(super) struct Lines {
    stdout: BufReader<ChildStdout>,
    decoder: Decoder,
    chunk: Box<[u8]>,
    text: String,
    /// Text before this index was returned already.
    start: usize,
    /// There is no line end between `start` and this index.
    searched: usize,
    ended: bool,
}

impl Lines {
    pub(super) fn new(stdout: ChildStdout, encoding: &'static Encoding) -> Self {
        let (stdout, decoder) = (
            BufReader::new(stdout),
            encoding.new_decoder_with_bom_removal(),
        );
        Self {
            stdout,
            decoder,
            chunk: vec![0; CHUNK].into(),
            text: String::new(),
            start: 0,
            searched: 0,
            ended: false,
        }
    }

    /// The next line without its line end; `None` at the end of the output.
    pub(super) async fn next(&mut self) -> Result<Option<String>, TooLong> {
        loop {
            if let Some(at) = self.text[self.searched..].find('\n') {
                let end = self.searched + at;
                let line = self.text[self.start..end].to_owned();
                (self.start, self.searched) = (end + 1, end + 1);
                return Ok(Some(line));
            }
            self.text.drain(..self.start);
            (self.start, self.searched) = (0, self.text.len());
            if self.text.len() > MAX_LINE {
                return Err(TooLong);
            }
            if self.ended {
                self.searched = 0;
                let rest = Some(std::mem::take(&mut self.text));
                return Ok(rest.filter(|rest| !rest.is_empty()));
            }
            let read = self.stdout.read(&mut self.chunk).await.unwrap_or(0);
            self.ended = read == 0;
            self.decode(read);
        }
    }

    /// Decodes the first `read` bytes of the chunk. Invalid bytes become U+FFFD.
    fn decode(&mut self, read: usize) {
        let room = self
            .decoder
            .max_utf8_buffer_length(read)
            .expect("a chunk is small");
        self.text.reserve(room);
        let _ = self
            .decoder
            .decode_to_string(&self.chunk[..read], &mut self.text, self.ended);
    }
}

/// The bytes of a line with one message. Line ends of JSON can only be white space between its parts.
pub(super) fn encode_line(message: &str, encoding: &'static Encoding) -> Vec<u8> {
    let mut line = message.replace(['\n', '\r'], " ");
    line.push('\n');
    if encoding == UTF_8 {
        return line.into_bytes();
    }
    let ascii = escape_non_ascii(&line);
    match encoding {
        _ if encoding == UTF_16LE => ascii.bytes().flat_map(|byte| [byte, 0]).collect(),
        _ if encoding == UTF_16BE => ascii.bytes().flat_map(|byte| [0, byte]).collect(),
        _ => ascii.into_bytes(),
    }
}

/// Escapes the characters of JSON that are not ASCII. They occur only inside strings.
fn escape_non_ascii(json: &str) -> String {
    let mut ascii = String::with_capacity(json.len());
    for char in json.chars() {
        if char.is_ascii() {
            ascii.push(char);
            continue;
        }
        for unit in char.encode_utf16(&mut [0; 2]) {
            let _ = write!(ascii, "\\u{unit:04x}");
        }
    }
    ascii
}
