// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http

import (
	"bytes"
	"errors"
	"io"
	nethttp "net/http"
	"strings"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// errorWatch is the body of a server's answer to generate or generate_stream, and looks for an error while the body is read.
// Triton reports there that the request failed, with status 200 too, by an event, or a document, that is {"error":"..."} and nothing else. The answer of a model whose
// output has that name has the model's name in it, too.
type errorWatch struct {
	io.ReadCloser
	events   bool   // the body is events, each in a line; else it is a single document
	prefix   string // of a line that is an error
	line     []byte // the part of the line that has been read, as long as the line may be an error
	harmless bool   // the line is no error
	// found: there was an error; text is that of the first one.
	found bool
	text  string
}

// maxErrorBytes is how long an event may be to be taken for an error.
const maxErrorBytes = 64 << 10

const (
	eventPrefix = "data: "
	errorPrefix = `{"error":"`
)

// watchErrors looks for an error in the body of an answer while it is read.
func (x *exchange) watchErrors(answer *nethttp.Response) {
	if ends := answer.StatusCode == nethttp.StatusOK || answer.StatusCode >= nethttp.StatusBadRequest; x.model == "" || !ends || answer.Header.Get("Content-Encoding") != "" {
		return
	}
	x.watch = &errorWatch{ReadCloser: answer.Body, prefix: errorPrefix}
	if strings.HasPrefix(answer.Header.Get("Content-Type"), "text/event-stream") {
		x.watch.events, x.watch.prefix = true, eventPrefix+errorPrefix
	}
	answer.Body = x.watch
}

// Read implements io.Reader.
func (w *errorWatch) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	w.scan(p[:n])
	if errors.Is(err, io.EOF) {
		w.endLine()
	}
	return n, err
}

// scan looks for an error in the bytes that were read last.
func (w *errorWatch) scan(p []byte) {
	for len(p) > 0 && !w.found {
		i := -1
		if w.events {
			i = bytes.IndexByte(p, '\n')
		}
		if i < 0 {
			w.add(p)
			return
		}
		w.add(p[:i])
		w.endLine()
		p = p[i+1:]
	}
}

// add adds a part of a line.
func (w *errorWatch) add(p []byte) {
	if w.harmless {
		return
	}
	if missing := len(w.prefix) - len(w.line); missing > 0 {
		n := min(missing, len(p))
		w.line, p = append(w.line, p[:n]...), p[n:]
		w.harmless = !strings.HasPrefix(w.prefix, string(w.line))
	}
	if w.harmless = w.harmless || len(w.line)+len(p) > maxErrorBytes; !w.harmless {
		w.line = append(w.line, p...)
	}
}

// endLine takes the error in if the line that ends here is an error, and begins the next line.
func (w *errorWatch) endLine() {
	if !w.found && !w.harmless && len(w.line) > len(w.prefix) {
		w.text, w.found = batch.ErrorOfHTTP(w.line[len(w.prefix)-len(errorPrefix):])
	}
	w.line, w.harmless = w.line[:0], false
}
