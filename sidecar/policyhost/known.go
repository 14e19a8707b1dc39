// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policyhost

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
)

// listTime bounds the time that conch-policies has to print its list.
const listTime = 10 * time.Second

// Beside is the path of conch-policies next to the given executable, where it
// is installed.
func Beside(executable string) string {
	return filepath.Join(filepath.Dir(executable), "conch-policies")
}

// List names the policies that could be used, sorted: the third-party ones of
// [Options] and the built-in ones. Where the built-in ones cannot be listed the
// others are returned with the error.
func (h *Host) List(ctx context.Context) ([]Known, error) {
	names, err := h.builtins(ctx)
	h.mu.Lock()
	using := h.inUse
	h.mu.Unlock()
	var list []Known
	for name, e := range h.o.Policies {
		list = append(list, Known{Name: name, Path: e.Path})
	}
	for _, name := range names {
		if _, shadowed := h.o.Policies[name]; !shadowed {
			list = append(list, Known{Name: name, Builtin: true, Path: h.o.Builtins})
		}
	}
	for i := range list {
		list[i].InUse = using != nil && using.name == list[i].Name && using.executable.Path == list[i].Path
	}
	if using != nil && !slices.ContainsFunc(list, func(k Known) bool { return k.InUse }) {
		list = append(list, Known{Name: using.name, Path: using.executable.Path, InUse: true})
	}
	slices.SortFunc(list, func(a, b Known) int { return cmp.Compare(a.Name, b.Name) })
	return list, err
}

// listed is what a conch-policies has printed. Another file at its path may print another list.
type listed struct {
	file  fs.FileInfo
	names []string
}

// of reports that it is the list of a file.
func (l listed) of(file fs.FileInfo) bool {
	return l.file != nil && os.SameFile(l.file, file) && l.file.Size() == file.Size() && l.file.ModTime().Equal(file.ModTime())
}

// builtins asks conch-policies for its list, once for each file that it has been. No start relies on the list: it verifies the file again.
func (h *Host) builtins(ctx context.Context) ([]string, error) {
	if h.o.Builtins == "" {
		return nil, nil
	}
	info, err := os.Stat(h.o.Builtins)
	if err == nil {
		h.mu.Lock()
		known := h.listed
		h.mu.Unlock()
		if known.of(info) {
			return slices.Clone(known.names), nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	file, err := verified(h.o.Builtins, h.o.BuiltinsSHA256)
	if err != nil {
		return nil, err
	}
	info, err = file.Stat()
	_ = file.Close() // it was only read
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStart, err)
	}
	cmd := exec.CommandContext(ctx, h.o.Builtins, "-list")
	cmd.Env = hostEnvironment()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("listing the built-in policies with %s -list: %w %s; conch-policies belongs next to conch (make build puts it there)",
			h.o.Builtins, err, bytes.TrimSpace(stderr.Bytes()))
	}
	names := strings.Fields(string(out))
	h.mu.Lock()
	h.listed = listed{info, names}
	h.mu.Unlock()
	return slices.Clone(names), nil
}

// resolve finds the executable of a policy.
func (h *Host) resolve(ctx context.Context, ref Ref) (Executable, error) {
	if ref.Executable != nil {
		return *ref.Executable, nil
	}
	if e, ok := h.o.Policies[ref.Name]; ok {
		return e, nil
	}
	names, err := h.builtins(ctx)
	if err != nil {
		return Executable{}, fmt.Errorf("%w: %w", ErrStart, err)
	}
	if slices.Contains(names, ref.Name) {
		return Executable{Path: h.o.Builtins, Args: []string{ref.Name}, SHA256: h.o.BuiltinsSHA256}, nil
	}
	for name := range h.o.Policies {
		names = append(names, name)
	}
	slices.Sort(names)
	return Executable{}, fmt.Errorf("%w; there are: %s", ErrUnknownPolicy, strings.Join(names, ", "))
}

// Describe returns the description of a policy. That of the one in use is
// remembered; another one is started for it and stopped again.
func (h *Host) Describe(ctx context.Context, ref Ref) (*policy.Description, error) {
	h.mu.Lock()
	closed, u := h.closed, h.inUse
	h.mu.Unlock()
	if closed {
		return nil, ErrClosed
	}
	if u != nil && u.name == ref.Name && ref.Executable == nil {
		return proto.CloneOf(u.description), nil
	}
	executable, err := h.resolve(ctx, ref)
	if err != nil {
		return nil, fmt.Errorf("policy %s: %w", ref.Name, err)
	}
	p, d, err := h.startAndDescribe(ctx, ref.Name, executable)
	if err != nil {
		return nil, fmt.Errorf("policy %s: %w", ref.Name, err)
	}
	p.stop()
	return d, nil
}

// Try asks another policy than the one in use for one plan: its process is started for that and stopped again. It begins without the state of an
// earlier answer, leaves none, and counts for nothing. What Options.Check says of the answer is the caller's to ask.
func (h *Host) Try(ctx context.Context, ref Ref, s *policy.Snapshot) (*policy.Plan, error) {
	u, err := h.prepare(ctx, ref)
	if err != nil {
		return nil, fmt.Errorf("policy %s: %w", ref.Name, err)
	}
	defer u.process.stop()
	if unmet := u.description.Unmet(s); len(unmet) > 0 {
		return nil, fmt.Errorf("policy %s: %w", ref.Name, needs(unmet))
	}
	answer, err := h.put(ctx, h.question(s, u), u)
	if err != nil {
		return nil, fmt.Errorf("policy %s: %w", ref.Name, err)
	}
	answer.Policy, answer.PolicyVersion = u.description.GetName(), u.description.GetVersion()
	return answer, nil
}

// Status tells about the policy in use.
func (h *Host) Status() Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	u := h.inUse
	if u == nil {
		return Status{State: StateNone, Breaker: BreakerClosed}
	}
	s := Status{
		Name: u.name, Description: proto.CloneOf(u.description), Parameters: maps.Clone(u.resolved),
		State: StateRunning, PID: u.process.pid(), Since: u.since,
		Breaker: u.guard.state, Failures: u.guard.failures, Restarts: u.restarts,
		Plans: u.plans, RetryAt: u.guard.retryAt, LastPlan: u.lastPlan, LastDuration: u.lastTook,
	}
	if h.closed || u.process.exited() {
		s.State, s.PID = StateDown, 0
	}
	if u.lastErr != nil {
		s.LastError = u.lastErr.Error()
	}
	return s
}
