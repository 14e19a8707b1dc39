// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// listensIn reports that the process, or another of its group, listens on the
// TCP port. Where that may not be seen it says yes.
func listensIn(group, port int) bool {
	sockets, err := listeners(port)
	if err != nil { // the kernel was built without the answer
		sockets = tabled(port)
	}
	if len(sockets) == 0 {
		return false
	}
	for _, pid := range members(group) {
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		fds, err := os.ReadDir(dir)
		if errors.Is(err, os.ErrPermission) {
			return true
		}
		for _, fd := range fds {
			if to, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil && sockets[to] {
				return true
			}
		}
	}
	return false
}

// What follows is of the kernel's include/uapi/linux/inet_diag.h.
const (
	diagRequestBytes = 56 // struct inet_diag_req_v2
	diagPort         = 8  // in it: the port, and the states
	diagStates       = 4
	diagInode        = 68 // in struct inet_diag_msg
	stateListen      = 10 // TCP_LISTEN
)

// answerTime is how long the kernel may take to answer, in seconds.
const answerTime = 5

// listeners are the sockets that listen on the TCP port, as /proc calls them.
// The kernel is asked for these alone: its tables in /proc have every connection
// of the machine, and reading them takes milliseconds.
func listeners(port int) (map[string]bool, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }() // nothing is in it
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: answerTime}); err != nil {
		return nil, err
	}
	sockets := map[string]bool{}
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} { // gRPC listens on ::ffff:127.0.0.1
		request := make([]byte, unix.NLMSG_HDRLEN+diagRequestBytes)
		binary.NativeEndian.PutUint32(request, uint32(len(request)))
		binary.NativeEndian.PutUint16(request[4:], unix.SOCK_DIAG_BY_FAMILY)
		binary.NativeEndian.PutUint16(request[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
		asked := request[unix.NLMSG_HDRLEN:]
		asked[0], asked[1] = family, unix.IPPROTO_TCP
		binary.NativeEndian.PutUint32(asked[diagStates:], 1<<stateListen)
		binary.BigEndian.PutUint16(asked[diagPort:], uint16(port))
		if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return nil, err
		}
		if err := inodes(fd, sockets); err != nil {
			return nil, err
		}
	}
	return sockets, nil
}

// inodes reads one answer to its end.
func inodes(fd int, sockets map[string]bool) error {
	buffer := make([]byte, 32<<10) // no part of an answer is larger
	for {
		n, _, err := unix.Recvfrom(fd, buffer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		messages, err := syscall.ParseNetlinkMessage(buffer[:n])
		if err != nil {
			return err
		}
		for _, m := range messages {
			switch {
			case m.Header.Type == unix.NLMSG_DONE || m.Header.Type == unix.NLMSG_ERROR:
				if len(m.Data) >= 4 { // a dump that fails, as without tcp_diag, is done, too
					if errno := int32(binary.NativeEndian.Uint32(m.Data)); errno < 0 {
						return unix.Errno(-errno)
					}
				}
				return nil
			case m.Header.Type == unix.SOCK_DIAG_BY_FAMILY && len(m.Data) >= diagInode+4:
				sockets["socket:["+strconv.FormatUint(uint64(binary.NativeEndian.Uint32(m.Data[diagInode:])), 10)+"]"] = true
			}
		}
	}
}

// tabled is listeners from the tables in /proc, which every kernel has.
func tabled(port int) map[string]bool {
	sockets := map[string]bool{}
	for _, family := range []string{"tcp", "tcp6"} {
		table, err := os.ReadFile("/proc/self/net/" + family)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(table)) {
			// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
			f := strings.Fields(line)
			if len(f) > 9 && f[3] == "0A" && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
				sockets["socket:["+f[9]+"]"] = true
			}
		}
	}
	return sockets
}
