// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"time"
)

// A recorded trace is one line of JSON, a [Header], and then binary entries. All numbers are unsigned varints (as in encoding/binary),
// except the time, which is a signed one:
//
//	0, length, name, SLO in us            a model; models are numbered from 0 in the order in which they appear
//	1+model, time, rows, bytes, deadline  a request
//
// The time is in microseconds since the request before it (the first one: since the start); it is negative where two arrived in the other
// order than they were recorded. The deadline is in microseconds after the arrival, 0 for the model's SLO. Bytes count the request's
// tensors; the tensors themselves are never in a trace, nor is anything else that a client sent.
const (
	traceFormat  = "conch-trace"
	traceVersion = 1
	maxHeader    = 1 << 16
	maxName      = 1 << 10
	maxModels    = 1 << 20
)

var (
	// ErrNotATrace means that a file is not a trace of a version that this package reads.
	ErrNotATrace = errors.New("not a conch trace of version 1")
	// ErrTruncated means that a trace ends in the middle of an entry, as when its writer was killed; everything before was read.
	ErrTruncated = errors.New("the trace ends in the middle of an entry")
)

// Header is the first line of a recorded trace.
type Header struct {
	// Format is "conch-trace", Version 1.
	Format  string `json:"format"`
	Version int    `json:"version"`
	// Start is when the trace's time 0 was.
	Start time.Time `json:"start"`
	// Source is what recorded it, as text for readers.
	Source string `json:"source,omitempty"`
}

// TraceModel is a model of a trace.
type TraceModel struct {
	Name string
	SLO  time.Duration
}

// Writer writes a recorded trace. It is not safe for concurrent use. Records cost a few bytes each and no allocation.
type Writer struct {
	w      *bufio.Writer
	last   int64 // us
	models int
	buf    []byte
}

// NewWriter writes the header. Format and Version of h are filled in.
func NewWriter(w io.Writer, h Header) (*Writer, error) {
	h.Format, h.Version = traceFormat, traceVersion
	line, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("trace: header: %w", err)
	}
	if len(line) >= maxHeader {
		return nil, fmt.Errorf("trace: a header of %d bytes is too long", len(line))
	}
	t := &Writer{w: bufio.NewWriterSize(w, 1<<16), buf: make([]byte, 0, 6*binary.MaxVarintLen64)}
	if _, err := t.w.Write(append(line, '\n')); err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	return t, nil
}

// Model adds a model and returns the number that its requests are written with.
func (t *Writer) Model(m TraceModel) (int32, error) {
	if m.Name == "" || len(m.Name) > maxName || t.models == maxModels {
		return 0, fmt.Errorf("trace: model %.40q: a name has 1 to %d bytes, and a trace at most %d models", m.Name, maxName, maxModels)
	}
	b := append(t.buf[:0], 0)
	b = binary.AppendUvarint(b, uint64(len(m.Name)))
	b = append(b, m.Name...)
	b = binary.AppendUvarint(b, uint64(max(0, m.SLO.Microseconds())))
	if _, err := t.w.Write(b); err != nil {
		return 0, fmt.Errorf("trace: %w", err)
	}
	t.models++
	return int32(t.models - 1), nil
}

// Write adds a request of a model that was added before.
func (t *Writer) Write(a Arrival) error {
	if a.Model < 0 || int(a.Model) >= t.models || a.At < 0 || a.At > longest || a.Deadline < 0 || a.Bytes < 0 {
		return fmt.Errorf("trace: a request of model %d at %v with deadline %v and %d bytes cannot be; there are %d models", a.Model, a.At, a.Deadline, a.Bytes, t.models)
	}
	at := a.At.Microseconds()
	b := binary.AppendUvarint(t.buf[:0], uint64(a.Model)+1)
	b = binary.AppendVarint(b, at-t.last)
	b = binary.AppendUvarint(b, uint64(max(1, a.Rows)))
	b = binary.AppendUvarint(b, uint64(a.Bytes))
	b = binary.AppendUvarint(b, uint64(a.Deadline.Microseconds()))
	if _, err := t.w.Write(b); err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	t.last = at
	return nil
}

// Flush writes out what is buffered; call it at the end, or from time to time.
func (t *Writer) Flush() error {
	if err := t.w.Flush(); err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	return nil
}

// Reader reads a recorded trace, as it goes.
type Reader struct {
	Header Header

	r      *bufio.Reader
	models []TraceModel
	last   int64
	n      uint64 // entries read
	err    error
}

var _ Failing = (*Reader)(nil)

// NewReader reads the header; anything else than a trace of this version is [ErrNotATrace].
func NewReader(r io.Reader) (*Reader, error) {
	t := &Reader{r: bufio.NewReaderSize(r, maxHeader)}
	line, err := t.r.ReadSlice('\n')
	if err != nil {
		return nil, fmt.Errorf("trace: %w: it has no header line", ErrNotATrace)
	}
	decoder := json.NewDecoder(bytes.NewReader(line))
	if err := decoder.Decode(&t.Header); err != nil {
		return nil, fmt.Errorf("trace: %w: its first line is not the header of a recording, which is JSON (%w); a list of arrivals or counts per minute is for the trace of a scenario", ErrNotATrace, err)
	}
	if t.Header.Format != traceFormat || t.Header.Version != traceVersion {
		return nil, fmt.Errorf("trace: %w: its header says %q version %d", ErrNotATrace, t.Header.Format, t.Header.Version)
	}
	return t, nil
}

// Models are those that were read so far.
func (t *Reader) Models() []TraceModel { return t.models }

// Err implements [Failing].
func (t *Reader) Err() error { return t.err }

// Next implements [Stream], in the order in which requests were recorded: Arrival.At may go back a little. [Trace] mends that.
func (t *Reader) Next(a *Arrival) bool {
	if t.err != nil {
		return false
	}
	for {
		tag, err := binary.ReadUvarint(t.r)
		if errors.Is(err, io.EOF) {
			return false
		}
		if err != nil {
			return t.fail(err)
		}
		if tag == 0 {
			err = t.model()
		} else {
			err = t.request(tag-1, a)
		}
		if err != nil {
			return t.fail(err)
		}
		t.n++
		if tag != 0 {
			return true
		}
	}
}

func (t *Reader) fail(err error) bool {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = ErrTruncated
	}
	t.err = fmt.Errorf("trace: entry %d: %w", t.n+1, err)
	return false
}

func (t *Reader) model() error {
	length, err := binary.ReadUvarint(t.r)
	if err != nil {
		return err
	}
	if length == 0 || length > maxName || len(t.models) == maxModels {
		return fmt.Errorf("a model name of %d bytes, model %d", length, len(t.models)+1)
	}
	name := make([]byte, length)
	if _, err := io.ReadFull(t.r, name); err != nil {
		return err
	}
	slo, err := t.micros()
	if err != nil {
		return err
	}
	t.models = append(t.models, TraceModel{Name: string(name), SLO: slo})
	return nil
}

func (t *Reader) request(model uint64, a *Arrival) error {
	if model >= uint64(len(t.models)) {
		return fmt.Errorf("a request of model %d, of %d", model, len(t.models))
	}
	delta, err := binary.ReadVarint(t.r)
	if err != nil {
		return err
	}
	at := t.last + delta
	if delta > longest.Microseconds() || delta < -longest.Microseconds() || at < 0 || at > longest.Microseconds() {
		return fmt.Errorf("a request %d us after %d us", delta, t.last)
	}
	rows, err := binary.ReadUvarint(t.r)
	if err != nil {
		return err
	}
	size, err := binary.ReadUvarint(t.r)
	if err != nil {
		return err
	}
	if rows == 0 || rows > math.MaxInt32 || size > math.MaxInt64 {
		return fmt.Errorf("a request of %d rows and %d bytes", rows, size)
	}
	deadline, err := t.micros()
	if err != nil {
		return err
	}
	t.last = at
	*a = Arrival{At: time.Duration(at) * time.Microsecond, Deadline: deadline, Model: int32(model), Rows: int32(rows), Bytes: int64(size)}
	return nil
}

func (t *Reader) micros() (time.Duration, error) {
	v, err := binary.ReadUvarint(t.r)
	if err == nil && v > uint64(longest.Microseconds()) {
		err = fmt.Errorf("a time of %d us", v)
	}
	return time.Duration(v) * time.Microsecond, err
}

// Trace makes a stream of a recorded trace for the models of a scenario, by name. A request that was recorded after a later one counts as
// simultaneous with it. A model that the scenario does not have ends the stream with an error.
func Trace(r *Reader, models map[string]int32) Failing {
	return &replay{r: r, models: models}
}

type replay struct {
	r      *Reader
	models map[string]int32
	index  []int32 // by number in the trace
	last   time.Duration
	err    error
}

func (t *replay) Next(a *Arrival) bool {
	if t.err != nil || !t.r.Next(a) {
		return false
	}
	for len(t.index) < len(t.r.models) {
		name := t.r.models[len(t.index)].Name
		i, ok := t.models[name]
		if !ok {
			t.err = fmt.Errorf("trace: entry %d: model %q is not one of the scenario's", t.r.n, name)
			return false
		}
		t.index = append(t.index, i)
	}
	a.Model = t.index[a.Model]
	t.last = max(t.last, a.At)
	a.At = t.last
	return true
}

func (t *replay) Err() error { return errors.Join(t.err, t.r.err) }

// Whole is a stream that ends where a trace was cut off in the middle of an entry, as if it had ended there; other errors stay.
func Whole(s Stream) Failing { return whole{s} }

type whole struct{ Stream }

func (w whole) Err() error {
	if err := Err(w.Stream); !errors.Is(err, ErrTruncated) {
		return err
	}
	return nil
}

// Extent is how much a recorded trace holds.
type Extent struct {
	Models   []TraceModel
	Requests uint64
	// Length is just after the last arrival.
	Length time.Duration
	// Truncated: it ends in the middle of an entry, as when its writer was killed; what is before counts.
	Truncated bool
}

// Measure reads a trace to its end and keeps nothing of its requests.
func Measure(r io.Reader) (Extent, error) {
	t, err := NewReader(r)
	if err != nil {
		return Extent{}, err
	}
	var e Extent
	for a := (Arrival{}); t.Next(&a); e.Requests++ {
		e.Length = max(e.Length, a.At+1)
	}
	e.Models = t.Models()
	if err := t.Err(); err != nil {
		if !errors.Is(err, ErrTruncated) || e.Requests == 0 {
			return Extent{}, err
		}
		e.Truncated = true
	}
	return e, nil
}
