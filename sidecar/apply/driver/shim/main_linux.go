// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Main is the shim process of a directory; its result is the exit status. It
// returns when the server has ended and nothing of it is left.
func Main(dir string) int {
	// Linux ends the server with the thread that started it. The first thread lives
	// as long as the process.
	runtime.LockOSThread()
	if err := run(dir); err != nil {
		fmt.Fprintln(os.Stderr, "conch shim:", err)
		return 1
	}
	return 0
}

// keeper is a running shim.
type keeper struct {
	dir    string
	spec   Spec
	log    *logFile
	server int // process id, and id of the group

	mu       sync.Mutex
	clients  map[net.Conn]bool
	met      chan struct{} // closed when the first conch has come
	orphaned *time.Timer
	known    bool // met is closed
	ending   bool // the server was asked to end
	dead     bool // the server has ended: its process id may be reused
}

func run(dir string) error {
	k := &keeper{dir: dir, clients: map[net.Conn]bool{}, met: make(chan struct{})}
	if err := k.read(); err != nil {
		return err
	}
	// What the server's processes leave behind when they end becomes our child.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the reaper: %w", err)
	}
	var err error
	if k.log, err = openLog(k.spec.Log, k.spec.LogBytes, k.spec.LogFiles); err != nil {
		return err
	}
	listener, err := net.Listen("unix", filepath.Join(dir, socketFile))
	if err != nil {
		return err
	}
	defer listener.Close()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	logged, err := k.start()
	if err != nil {
		return err
	}
	if err := k.introduce(); err != nil {
		return errors.Join(err, k.kill())
	}
	go func() {
		for range signals {
			go k.end() // a stop of the machine stops the server
		}
	}()
	k.count(nil)
	go k.accept(listener)
	// The starter reads this; a shim that was started for a conch that died meanwhile
	// has no reader.
	fmt.Println("ready")
	_ = os.Stdout.Close()

	status := k.reap(logged)
	ended := "tritonserver exited: " + describe(status)
	if last := k.log.errors(); last != "" {
		ended += "; it logged: " + last
	}
	err = errors.Join(killMarked(k.spec.Name), RemoveSharedMemory(k.spec.SharedMemory), writeFile(filepath.Join(dir, exitFile), report{Ended: ended}))
	select {
	case <-k.met:
	case <-time.After(patience): // a server may end before its starter has come to hear why
	}
	k.tell(report{Ended: ended})
	return err
}

// read takes the specification, which holds the server's environment, off the
// disk.
func (k *keeper) read() error {
	path := filepath.Join(k.dir, specFile)
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &k.spec)
	}
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil {
		return fmt.Errorf("specification: %w", err)
	}
	return nil
}

// start starts the server as the head of a process group of its own. The channel
// is closed once its output has ended.
func (k *keeper) start() (<-chan struct{}, error) {
	output, input, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer func() { _ = null.Close() }()
	k.server, err = syscall.ForkExec(k.spec.Command, append([]string{k.spec.Command}, k.spec.Args...), &syscall.ProcAttr{
		Env:   append(k.spec.Env, NameVariable+"="+k.spec.Name),
		Files: []uintptr{null.Fd(), input.Fd(), input.Fd()},
		Sys:   &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	})
	closing := input.Close()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", k.spec.Command, err), closing)
	}
	logged := make(chan struct{})
	go func() {
		defer close(logged)
		k.log.copy(output)
	}()
	return logged, nil
}

// introduce writes the identities of the shim and its server to a file.
func (k *keeper) introduce() error {
	self, err := identify(os.Getpid())
	if err != nil {
		return err
	}
	server, err := identify(k.server)
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(k.dir, stateFile), state{
		Name: k.spec.Name, Label: k.spec.Label, Shim: self, Server: server, Boot: boot(),
		SharedMemory: k.spec.SharedMemory, Log: k.spec.Log, Begin: time.Now(),
	})
}

// reap collects the server's end and every orphan before it, and returns when
// the server and its whole group are gone.
func (k *keeper) reap(logged <-chan struct{}) syscall.WaitStatus {
	for {
		var info unix.Siginfo
		// Ended processes stay zombies for the moment: as long as the server is one, no
		// other process group can have its number.
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0 // no child is left, which cannot be before the server is collected
		}
		pid := childOf(&info)
		if pid == k.server {
			k.mu.Lock()
			k.dead = true
			_ = unix.Kill(-k.server, unix.SIGKILL) // no process may be left in the group
			k.mu.Unlock()
			select {
			case <-logged: // the last lines say why
			case <-time.After(2 * time.Second): // a child that left the group has the pipe open
			}
		}
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &status, 0, nil); err == nil && pid == k.server {
			return status
		}
	}
}

// accept serves conch.
func (k *keeper) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		k.count(conn)
		go k.serve(conn)
	}
}

func (k *keeper) serve(conn net.Conn) {
	defer k.uncount(conn)
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		var o order
		if json.Unmarshal(lines.Bytes(), &o) != nil {
			return
		}
		switch o.Do {
		case terminate:
			k.signal(syscall.SIGTERM)
		case kill:
			_ = k.kill() // what survives it is in the report that never comes
		}
	}
}

// firstContact is how long the conch that started a shim may take to connect, at
// least: a machine may be busy.
const firstContact = 30 * time.Second

// count notes a conch that has come; the first call, with none, begins the wait
// for one.
func (k *keeper) count(conn net.Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if conn == nil {
		k.orphaned = time.AfterFunc(max(k.spec.OrphanGrace, firstContact), k.end)
		return
	}
	if k.clients[conn] = true; !k.known {
		k.known = true
		close(k.met)
	}
	k.orphaned.Stop()
}

func (k *keeper) uncount(conn net.Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.clients, conn)
	_ = conn.Close() // read to its end
	if len(k.clients) == 0 && !k.dead {
		k.orphaned.Reset(k.spec.OrphanGrace)
	}
}

// end ends the server with its own means, and kills it where they do not do.
func (k *keeper) end() {
	k.mu.Lock()
	already := k.ending
	k.ending = true
	k.mu.Unlock()
	if already {
		return
	}
	k.signal(syscall.SIGTERM)
	time.Sleep(k.spec.StopTimeout)
	_ = k.kill()
}

func (k *keeper) signal(s syscall.Signal) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.dead {
		_ = unix.Kill(k.server, s) // it is ours: it is a child that was not collected
	}
}

func (k *keeper) kill() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dead {
		return nil
	}
	return unix.Kill(-k.server, unix.SIGKILL)
}

// tell reports to every conch that is there.
func (k *keeper) tell(r report) {
	text, err := json.Marshal(r)
	if err != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for conn := range k.clients {
		_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = conn.Write(append(text, '\n')) // a conch that is gone reads exit.json later
	}
}

// childOf is si_pid of a report about a child. It is the first member of a union
// that is aligned as a pointer is, after three numbers; package unix gives it no
// name.
func childOf(info *unix.Siginfo) int {
	const offset = (3*4 + unsafe.Sizeof(uintptr(0)) - 1) &^ (unsafe.Sizeof(uintptr(0)) - 1)
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(info), offset)))
}

func describe(s syscall.WaitStatus) string {
	switch {
	case s.Signaled():
		return "signal: " + s.Signal().String()
	default:
		return fmt.Sprintf("exit status %d", s.ExitStatus())
	}
}

// writeFile replaces a file as a whole.
func writeFile(path string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
