// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// patience is how long a shim may take to answer.
const patience = 5 * time.Second

// Handle is conch's side of a shim, from Start or Find until Close or the
// server's end.
type Handle struct {
	dir   string
	state state
	conn  net.Conn
	ended chan struct{} // closed by watch, after death is written
	death string
	letGo bool // written before ended is closed: the server runs on
	left  bool // under mu: Close was called
	mu    sync.Mutex
}

// Start starts a shim in dir, which it makes and must not exist, and through it
// the server. Command is how a shim is run, to which dir is added; it runs in a
// session of its own, so that nothing that ends conch ends it. A shim that has not begun
// when ctx ends, such as one whose disk hangs, is killed.
func Start(ctx context.Context, command []string, dir string, s Spec) (h *Handle, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("shim: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("shim: %w", err), killMarked(s.Name), os.RemoveAll(dir))
		}
	}()
	if err := writeFile(filepath.Join(dir, specFile), s); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(s.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the shim has its own
	cmd := exec.Command(command[0], append(command[1:len(command):len(command)], dir)...)
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// What the server needs of the environment is in the specification.
	cmd.Env = append(os.Environ(), NameVariable+"="+s.Name)
	output, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	waiting := context.AfterFunc(ctx, func() { _ = output.Close() })
	answer, _ := io.ReadAll(output)
	waiting()
	go func() { _ = cmd.Wait() }() // its end is learnt from the socket; this collects it
	switch {
	case string(answer) == "ready\n":
	case ctx.Err() != nil:
		return nil, fmt.Errorf("it did not begin in time: %w", context.Cause(ctx))
	default:
		return nil, fmt.Errorf("it did not start; %s says why: %s", s.Log, tail(s.Log))
	}
	return attach(dir)
}

// tail is the end of a file, for an error.
func tail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-300):])
}

// Find connects to the shims that run in directories of root. What it returns
// beside them removes the directories, processes and shared memory of those that do
// not, which may take seconds: a large process does not end at once.
func Find(root string) (found []*Handle, clean func() error, err error) {
	clean = func() error { return nil }
	entries, err := os.ReadDir(root)
	if errors.Is(err, os.ErrNotExist) {
		return nil, clean, nil
	}
	if err != nil {
		return nil, clean, fmt.Errorf("shims: %w", err)
	}
	var dirs, names []string
	var gone []state
	for _, e := range entries {
		dir := filepath.Join(root, e.Name())
		h, err := attach(dir)
		if err == nil {
			found = append(found, h)
			continue
		}
		var was state
		if text, err := os.ReadFile(filepath.Join(dir, stateFile)); err == nil && json.Unmarshal(text, &was) == nil {
			names, gone = append(names, was.Name), append(gone, was)
		} else {
			// Conch died while it started one. The directory has the server's name.
			names = append(names, e.Name())
		}
		dirs = append(dirs, dir)
	}
	return found, func() error {
		errs := []error{killMarked(names...)}
		for _, was := range gone {
			errs = append(errs, RemoveSharedMemory(was.SharedMemory))
		}
		for _, dir := range dirs { // last: until then the next conch would find them, too
			errs = append(errs, os.RemoveAll(dir))
		}
		return errors.Join(errs...)
	}, nil
}

// attach connects to the shim of a directory, if it is the one that is written
// down there.
func attach(dir string) (*Handle, error) {
	h := &Handle{dir: dir, ended: make(chan struct{})}
	text, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err == nil {
		err = json.Unmarshal(text, &h.state)
	}
	if err != nil {
		return nil, err
	}
	if h.state.Boot != boot() || !h.state.Shim.runs() {
		return nil, fmt.Errorf("%w: %s", ErrGone, dir)
	}
	if h.conn, err = net.DialTimeout("unix", filepath.Join(dir, socketFile), patience); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrGone, err)
	}
	go h.watch()
	return h, nil
}

// watch waits for the shim's report of the server's end, or for its end without one.
func (h *Handle) watch() {
	defer close(h.ended)
	var last report
	line, err := bufio.NewReader(h.conn).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &last)
	}
	h.mu.Lock()
	left := h.left
	h.mu.Unlock()
	if left {
		h.death, h.letGo = "conch has let go of the server", true
		return
	}
	if err != nil {
		if text, reading := os.ReadFile(filepath.Join(h.dir, exitFile)); reading == nil {
			err = json.Unmarshal(text, &last)
		}
	}
	h.death = last.Ended
	if err != nil {
		h.death = "the shim of the server was killed, and the server with it"
	}
	cleaned := errors.Join(killMarked(h.state.Name), RemoveSharedMemory(h.state.SharedMemory), os.RemoveAll(h.dir), h.conn.Close())
	if cleaned != nil {
		h.death += fmt.Sprintf("; it left something behind: %v", cleaned)
	}
}

// Label is the Spec's.
func (h *Handle) Label() map[string]string { return h.state.Label }

// Name is the Spec's.
func (h *Handle) Name() string { return h.state.Name }

// Log is the file that has the server's output.
func (h *Handle) Log() string { return h.state.Log }

// Begin is when the server was started.
func (h *Handle) Begin() time.Time { return h.state.Begin }

// ServerPID is the id of the server, and of its process group.
func (h *Handle) ServerPID() int { return h.state.Server.PID }

// ShimPID is the id of the shim.
func (h *Handle) ShimPID() int { return h.state.Shim.PID }

// Done is closed when nothing is left of the server, and after Close.
func (h *Handle) Done() <-chan struct{} { return h.ended }

// Death says how the server ended, once Done is closed.
func (h *Handle) Death() string { return h.death }

// LetGo reports, once Done is closed, that the server runs on: Close was called.
func (h *Handle) LetGo() bool { return h.letGo }

// Terminate asks the server to end (SIGTERM).
func (h *Handle) Terminate() error { return h.order(terminate) }

// Kill kills the server and whatever it started, and waits until nothing is
// left.
func (h *Handle) Kill(ctx context.Context) error {
	ordered := h.order(kill)
	wait, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case <-h.ended:
		return nil
	case <-wait.Done():
	}
	// The shim does not do its work (it may have been stopped): it goes, too.
	err := killMarked(h.state.Name)
	<-h.ended
	return errors.Join(ordered, err)
}

func (h *Handle) order(do string) error {
	text, err := json.Marshal(order{Do: do})
	if err != nil {
		return err
	}
	if err := h.conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	if _, err := h.conn.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return nil
}

// Close disconnects from the server, which keeps running for OrphanGrace, for another
// conch to find. After the server's end it does nothing.
func (h *Handle) Close() error {
	h.mu.Lock()
	h.left = true
	h.mu.Unlock()
	err := h.conn.Close()
	<-h.ended
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
