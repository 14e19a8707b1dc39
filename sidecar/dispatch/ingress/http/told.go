// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	nethttp "net/http"
	"strings"
)

// told reads along what a server answers to generate and generate_stream with status 200. Triton may yet say in it that the request failed: by an
// event, or a document, that is {"error":"..."} and nothing else. The answer of a model whose output has that name has the model's name in it, too.
type told struct {
	io.ReadCloser
	events bool   // one a line; else the body is one document
	begins string // an error does
	line   []byte // what has come of it, as long as it may be an error
	other  bool   // it is none
	// failure is the first error; nil: there was none.
	failure error
}

// maxToldBytes is how long an event may be to be taken for an error.
const maxToldBytes = 64 << 10

const (
	eventBegins = "data: "
	errorBegins = `{"error":"`
)

// listen has an answer read along, unless its status says already that the request failed.
func (x *exchange) listen(answer *nethttp.Response) {
	if x.model == "" || answer.StatusCode != nethttp.StatusOK || answer.Header.Get("Content-Encoding") != "" {
		return
	}
	x.told = &told{ReadCloser: answer.Body, begins: errorBegins}
	if strings.HasPrefix(answer.Header.Get("Content-Type"), "text/event-stream") {
		x.told.events, x.told.begins = true, eventBegins+errorBegins
	}
	answer.Body = x.told
}

// Read implements io.Reader.
func (t *told) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	t.hear(p[:n])
	if errors.Is(err, io.EOF) {
		t.judge()
	}
	return n, err
}

func (t *told) hear(p []byte) {
	for len(p) > 0 && t.failure == nil {
		i := -1
		if t.events {
			i = bytes.IndexByte(p, '\n')
		}
		if i < 0 {
			t.take(p)
			return
		}
		t.take(p[:i])
		t.judge()
		p = p[i+1:]
	}
}

// take takes in a part of a line.
func (t *told) take(p []byte) {
	if t.other {
		return
	}
	if missing := len(t.begins) - len(t.line); missing > 0 {
		n := min(missing, len(p))
		t.line, p = append(t.line, p[:n]...), p[n:]
		t.other = !strings.HasPrefix(t.begins, string(t.line))
	}
	if t.other = t.other || len(t.line)+len(p) > maxToldBytes; !t.other {
		t.line = append(t.line, p...)
	}
}

// judge says at the end of a line whether it was an error.
func (t *told) judge() {
	if t.failure == nil && !t.other && len(t.line) > len(t.begins) {
		var said map[string]string
		if err := json.Unmarshal(t.line[len(t.begins)-len(errorBegins):], &said); err == nil && len(said) == 1 {
			t.failure = fmt.Errorf("the answer, of HTTP status 200, has an error: %s", said["error"])
		}
	}
	t.line, t.other = t.line[:0], false
}
