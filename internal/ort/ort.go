// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package ort runs ONNX models in ONNX Runtime, in a Python process of its own: for tests and benchmarks, which verify and measure
// graphs that Triton cannot serve. Its Python is that of CONCH_PYTHON, with onnxruntime, onnx and numpy.
package ort

import (
	"bufio"
	"bytes"
	"context"
	_ "embed" // the program
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/conch-serving/conch/internal/onnx"
)

//go:embed session.py
var program string

// Runtime is one process with any number of models. It is for one goroutine at a time. Close it.
type Runtime struct {
	// Level is how much ONNX Runtime optimises models that are loaded from now on: 0 nothing to 3 everything.
	Level int

	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	stderr  bytes.Buffer
}

// Start starts the process. It ends with ctx.
func Start(ctx context.Context, python string) (*Runtime, error) {
	r := &Runtime{Level: 2, command: exec.CommandContext(ctx, python, "-u", "-c", program)}
	r.command.Stderr = &r.stderr
	var err error
	if r.in, err = r.command.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := r.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	r.out = bufio.NewReaderSize(out, 1<<20)
	return r, r.command.Start()
}

// Close ends the process.
func (r *Runtime) Close() error {
	closing := r.in.Close()
	if err := r.command.Wait(); err != nil {
		return fmt.Errorf("ONNX Runtime: %w: %s", err, bytes.TrimSpace(r.stderr.Bytes()))
	}
	return closing
}

// Name is what it calls itself.
func (r *Runtime) Name() string {
	return fmt.Sprintf("ONNX Runtime, CPU, optimisation level %d", r.Level)
}

type tensor struct {
	Name  string        `json:"name"`
	Type  onnx.DataType `json:"type"`
	Dims  []int64       `json:"dims"`
	Bytes int           `json:"bytes"`
}

type request struct {
	Do     string   `json:"do"`
	Name   string   `json:"name"`
	Path   string   `json:"path,omitempty"`
	Level  int      `json:"level"`
	Repeat int      `json:"repeat,omitempty"`
	Inputs []tensor `json:"inputs,omitempty"`
}

type answer struct {
	Error   string    `json:"error"`
	Outputs []tensor  `json:"outputs"`
	Seconds []float64 `json:"seconds"`
	RSS     int64     `json:"rss"`
}

// Measured is how a run went.
type Measured struct {
	// Times of each repetition.
	Times []time.Duration
}

// Load loads the graph of a model's directory: of version 1, or the file itself.
func (r *Runtime) Load(_ context.Context, name, path string) error {
	if filepath.Ext(path) != ".onnx" {
		path = filepath.Join(path, "1", "model.onnx")
	}
	_, err := r.ask(request{Do: "load", Name: name, Path: path, Level: r.Level}, nil)
	return err
}

// Unload forgets a model.
func (r *Runtime) Unload(_ context.Context, name string) error {
	_, err := r.ask(request{Do: "unload", Name: name}, nil)
	return err
}

// Run executes a model once.
func (r *Runtime) Run(_ context.Context, name string, inputs []onnx.Array) ([]onnx.Array, error) {
	out, _, err := r.Measure(name, inputs, 1)
	return out, err
}

// Measure executes a model so often.
func (r *Runtime) Measure(name string, inputs []onnx.Array, repeat int) ([]onnx.Array, Measured, error) {
	a, err := r.ask(request{Do: "run", Name: name, Repeat: repeat}, inputs)
	if err != nil {
		return nil, Measured{}, err
	}
	var out []onnx.Array
	for _, t := range a.Outputs {
		data := make([]byte, t.Bytes)
		if _, err := io.ReadFull(r.out, data); err != nil {
			return nil, Measured{}, err
		}
		out = append(out, onnx.Array{Name: t.Name, Type: t.Type, Dims: t.Dims, Data: data})
	}
	m := Measured{}
	for _, s := range a.Seconds {
		m.Times = append(m.Times, time.Duration(s*float64(time.Second)))
	}
	return out, m, nil
}

// Resident is the resident memory of the process, in bytes.
func (r *Runtime) Resident() (int64, error) {
	a, err := r.ask(request{Do: "nothing"}, nil)
	return a.RSS, err
}

func (r *Runtime) ask(q request, inputs []onnx.Array) (answer, error) {
	for _, x := range inputs {
		q.Inputs = append(q.Inputs, tensor{Name: x.Name, Type: x.Type, Dims: x.Dims, Bytes: len(x.Data)})
	}
	line, err := json.Marshal(q)
	if err != nil {
		return answer{}, err
	}
	message := append(line, '\n')
	for _, x := range inputs {
		message = append(message, x.Data...)
	}
	if _, err := r.in.Write(message); err != nil {
		return answer{}, fmt.Errorf("the process of ONNX Runtime: %w", err)
	}
	line, err = r.out.ReadBytes('\n')
	if err != nil {
		return answer{}, fmt.Errorf("the process of ONNX Runtime: %w", err)
	}
	var a answer
	if err := json.Unmarshal(line, &a); err != nil {
		return answer{}, err
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}
