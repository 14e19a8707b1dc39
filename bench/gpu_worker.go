// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// gpuQuestion is a command for a worker (internal/pymodels/torch/worker.py), gpuAnswer what it answers.
type (
	gpuQuestion struct {
		Do      string  `json:"do"`
		Network string  `json:"network,omitempty"`
		Rows    int     `json:"rows,omitempty"`
		Seconds float64 `json:"seconds,omitempty"`
		Streams int     `json:"streams,omitempty"`
		At      float64 `json:"at,omitempty"`
	}
	gpuAnswer struct {
		Ready     bool    `json:"ready"`
		Torch     string  `json:"torch"`
		SMs       int     `json:"sms"`
		MS        float64 `json:"ms"`
		P99MS     float64 `json:"p99_ms"`
		PerSecond float64 `json:"per_second"`
		N         int     `json:"n"`
		Error     string  `json:"error"`
	}
)

// gpuWorker is a process that executes networks on a GPU.
type gpuWorker struct {
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	errors  bytes.Buffer
}

// gpuWorkers are workers that may be asked side by side.
type gpuWorkers []*gpuWorker

// startGPUWorker starts a worker; its first answer says that it is ready.
func startGPUWorker(ctx context.Context, program string, instances int, environment []string) (*gpuWorker, error) {
	networks := map[string]int{}
	for _, n := range gpuNetworks {
		networks[n] = instances
	}
	asked, err := json.Marshal(map[string]any{"networks": networks, "sizes": gpuRows})
	if err != nil {
		return nil, fmt.Errorf("gpu: %w", err)
	}
	w := &gpuWorker{command: exec.CommandContext(ctx, "python3", program, string(asked))}
	w.command.Env = append(os.Environ(), environment...)
	w.command.Stderr = &w.errors
	in, err := w.command.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("gpu: %w", err)
	}
	out, err := w.command.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("gpu: %w", err)
	}
	w.in, w.out = in, bufio.NewReader(out)
	if err := w.command.Start(); err != nil {
		return nil, fmt.Errorf("gpu: python3: %w", err)
	}
	return w, nil
}

func (w *gpuWorker) send(q gpuQuestion) error {
	line, err := json.Marshal(q)
	if err != nil {
		return fmt.Errorf("gpu: %w", err)
	}
	if _, err := w.in.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("gpu: a worker does not listen: %w", err)
	}
	return nil
}

func (w *gpuWorker) answer() (a gpuAnswer, err error) {
	line, err := w.out.ReadBytes('\n')
	if err != nil {
		wait := w.command.Wait()
		said := strings.TrimSpace(w.errors.String())
		return a, fmt.Errorf("gpu: a worker ended: %w:\n%s", errors.Join(err, wait), said[max(0, len(said)-2000):])
	}
	if err := json.Unmarshal(line, &a); err != nil {
		return a, fmt.Errorf("gpu: a worker answers %q: %w", line, err)
	}
	if a.Error != "" {
		return a, fmt.Errorf("gpu: a worker: %s", a.Error)
	}
	return a, nil
}

func (w *gpuWorker) ask(q gpuQuestion) (gpuAnswer, error) {
	if err := w.send(q); err != nil {
		return gpuAnswer{}, err
	}
	return w.answer()
}

// beside has the first workers count executions in the same moment, each by its question.
func (all gpuWorkers) beside(questions ...gpuQuestion) ([]gpuAnswer, error) {
	const ahead = 50 * time.Millisecond
	at := float64(time.Now().Add(ahead).UnixMicro()) / 1e6
	for i, q := range questions {
		q.Do, q.Seconds, q.At = "count", gpuMoment.Seconds(), at
		if err := all[i].send(q); err != nil {
			return nil, err
		}
	}
	var answers []gpuAnswer
	for i := range questions {
		a, err := all[i].answer()
		if err != nil {
			return nil, err
		}
		answers = append(answers, a)
	}
	return answers, nil
}

func (all gpuWorkers) stop() {
	for _, w := range all {
		_ = w.in.Close() // it ends with its input
	}
	for _, w := range all {
		_ = w.command.Wait() // what it had to say was read
	}
}
