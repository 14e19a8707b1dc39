// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"github.com/landlock-lsm/go-landlock/landlock"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Main is the launcher: args are those that Command puts behind its first arguments. It
// returns only if it fails.
func Main(args []string) error {
	var s spec
	if len(args) == 0 {
		return errors.New("a policy is launched by conch, not by hand")
	}
	if err := json.Unmarshal([]byte(args[0]), &s); err != nil {
		return fmt.Errorf("what to launch: %w", err)
	}
	runtime.LockOSThread() // the signal below belongs to a thread, and is lost if another one becomes the policy
	if err := s.Limits.apply(s.Path); err != nil {
		return err
	}
	if err := endWith(s.Parent); err != nil {
		return err
	}
	program := "/proc/self/fd/" + strconv.Itoa(programFile)
	if s.Script {
		program = s.Path
	} else {
		unix.CloseOnExec(programFile)
	}
	err := syscall.Exec(program, append([]string{s.Path}, args[1:]...), os.Environ())
	return fmt.Errorf("running %s: %w", s.Path, err)
}

// apply takes from this process what the limits do not grant.
func (l Limits) apply(program string) error {
	processes := l.Processes
	if processes > 0 {
		processes += tasksOf(l.user()) // the system counts all processes of the user
	}
	for resource, most := range map[int]uint64{unix.RLIMIT_DATA: l.Data, unix.RLIMIT_NPROC: processes, unix.RLIMIT_NOFILE: l.Files} {
		if most == 0 {
			continue
		}
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: most, Max: most}); err != nil {
			return fmt.Errorf("limiting a policy's resources: %w", err)
		}
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("limiting a policy's resources: %w", err)
	}
	if len(l.Hidden) > 0 {
		if err := l.landlock(program); err != nil {
			return err
		}
	}
	if l.user() != os.Getuid() {
		for _, become := range []func() error{
			func() error { return syscall.Setgroups(nil) },
			func() error { return syscall.Setgid(l.User) },
			func() error { return syscall.Setuid(l.User) },
		} {
			if err := become(); err != nil {
				return fmt.Errorf("becoming user %d: %w", l.User, err)
			}
		}
	}
	return nil
}

// endWith ends this process with its parent. A change of user forgets what was asked for at the start, and a parent that ended since sends
// nothing any more.
func endWith(parent int) error {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("ending with conch: %w", err)
	}
	if now := os.Getppid(); now != parent {
		return fmt.Errorf("process %d, which launches this policy, has ended (the parent is %d)", parent, now)
	}
	return nil
}

// user is the user of the process to be.
func (l Limits) user() int {
	if uid := os.Getuid(); uid != 0 || l.User == 0 {
		return uid
	}
	return l.User
}

// tasksOf counts the processes and threads of a user.
func tasksOf(uid int) (n uint64) {
	processes, err := procfs.AllProcs()
	if err != nil {
		return 0
	}
	for _, p := range processes {
		status, err := p.NewStatus()
		if err != nil || status.UIDs[0] != uint64(uid) {
			continue
		}
		if stat, err := p.Stat(); err == nil {
			n += uint64(stat.NumThreads)
		}
	}
	return n
}

// landlock hides directories and denies TCP, as far as the kernel can.
func (l Limits) landlock(program string) error {
	var directories, files []string
	for _, path := range visible(resolved(l.Hidden)) {
		switch info, err := os.Stat(path); {
		case err != nil:
		case info.IsDir():
			directories = append(directories, path)
		default:
			files = append(files, path)
		}
	}
	rules := []landlock.Rule{
		landlock.RODirs(directories...).IgnoreIfMissing(), landlock.ROFiles(append(files, program)...).IgnoreIfMissing(),
		landlock.RWFiles("/dev/null").IgnoreIfMissing(),
	}
	if l.Writable != "" {
		rules = append(rules, landlock.RWDirs(l.Writable))
	}
	if err := landlock.V9.BestEffort().Restrict(rules...); err != nil {
		return fmt.Errorf("hiding conch's own directories from a policy: %w", err)
	}
	return nil
}
