// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
)

// Ports of children lie below those that the kernel gives to outgoing connections, which begin at 32768 on Linux.
const firstPort, endOfPorts = 12_000, 32_000

// ports are TCP ports of the loopback interface for a child that binds them later. Until they are released no other rig, of this process
// or another, gets them: an unused UDP socket of the same number is their mark, and ends with the process that holds it.
type ports struct {
	numbers []int
	marks   []net.PacketConn
}

// freePorts finds ports that are not in use at the moment. Release them when the child has ended.
func freePorts(n int) (*ports, error) {
	p := &ports{}
	for from, i := rand.IntN(endOfPorts-firstPort), 0; i < endOfPorts-firstPort && len(p.numbers) < n; i++ {
		if err := p.take(firstPort + (from+i)%(endOfPorts-firstPort)); err != nil && !errors.Is(err, syscall.EADDRINUSE) {
			p.release()
			return nil, fmt.Errorf("rig: free port: %w", err)
		}
	}
	if len(p.numbers) < n {
		p.release()
		return nil, fmt.Errorf("rig: of the ports from %d to %d fewer than %d are free", firstPort, endOfPorts-1, n)
	}
	return p, nil
}

// take takes a port unless it is used.
func (p *ports) take(port int) error {
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	mark, err := net.ListenPacket("udp", address) //nolint:noctx // it waits for nothing
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", address) //nolint:noctx // it waits for nothing
	if err != nil {
		return errors.Join(err, mark.Close())
	}
	p.numbers, p.marks = append(p.numbers, port), append(p.marks, mark)
	return l.Close()
}

// release lets others have the ports.
func (p *ports) release() {
	for _, m := range p.marks {
		_ = m.Close() // it is only a mark
	}
	p.marks = nil
}
