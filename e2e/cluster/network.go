// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
)

const hub = "conch-hub"

func namespace(n int) string { return fmt.Sprintf("conch-node-%d", n) }

// inHub is a command that runs in the hub's network namespace.
func (c *Cluster) inHub(command ...string) []string {
	return append([]string{"nsenter", "--net=/run/netns/" + hub}, command...)
}

// network makes the namespaces and joins them: this machine - hub - each node.
func (c *Cluster) network(ctx context.Context) error {
	routes, err := output(ctx, "ip", "-4", "route", "show")
	if err != nil {
		return err
	}
	for line := range strings.Lines(routes) {
		for _, taken := range []string{"10.97.", "10.98.0.", "10.99."} {
			if strings.HasPrefix(line, taken) {
				return fmt.Errorf("the cluster's networks are 10.97.0.0/16, %s and 10.99.0.0/16, and this machine has a route of its own there: %s", serviceRange, line)
			}
		}
	}
	steps := []string{
		"netns add " + hub,
		"link add conch-hub0 type veth peer name host0 netns " + hub,
		"addr add " + hostAddress + "/30 dev conch-hub0", "link set conch-hub0 up",
		"-n " + hub + " addr add " + hubAddress + "/30 dev host0", "-n " + hub + " link set host0 up",
		"-n " + hub + " link set lo up", "-n " + hub + " addr add " + service + "/32 dev lo",
		"route add 10.97.0.0/16 via " + hubAddress, "route add " + serviceRange + " via " + hubAddress, "route add 10.99.0.0/16 via " + hubAddress,
	}
	for n := 1; n <= c.o.Nodes; n++ {
		ns := namespace(n)
		steps = append(steps,
			"netns add "+ns,
			fmt.Sprintf("-n %s link add node%d type veth peer name eth0 netns %s", hub, n, ns),
			fmt.Sprintf("-n %s addr add 10.97.%d.1/30 dev node%d", hub, n, n), fmt.Sprintf("-n %s link set node%d up", hub, n),
			fmt.Sprintf("-n %s addr add 10.97.%d.2/30 dev eth0", ns, n), "-n "+ns+" link set eth0 up", "-n "+ns+" link set lo up",
			fmt.Sprintf("-n %s route add default via 10.97.%d.1", ns, n),
			fmt.Sprintf("-n %s route add 10.99.%d.0/24 via 10.97.%d.2", hub, n, n),
		)
	}
	for _, step := range steps {
		if _, err := output(ctx, "ip", strings.Fields(step)...); err != nil {
			return fmt.Errorf("ip %s: %w", step, err)
		}
	}
	for n := 0; n <= c.o.Nodes; n++ {
		ns := hub
		if n > 0 {
			ns = namespace(n)
		}
		if _, err := output(ctx, "nsenter", "--net=/run/netns/"+ns, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"); err != nil {
			return err
		}
	}
	return nil
}

// unnetwork removes the namespaces; their links and this machine's routes go with them.
func (c *Cluster) unnetwork(ctx context.Context) error {
	entries, err := os.ReadDir("/run/netns")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if e.Name() == hub || strings.HasPrefix(e.Name(), "conch-node-") {
			_, err := output(ctx, "ip", "netns", "del", e.Name())
			errs = append(errs, err)
		}
	}
	// A namespace goes with its last process, which may take a moment; the link does not wait for that.
	if _, err := os.Stat("/sys/class/net/conch-hub0"); err == nil {
		_, err := output(ctx, "ip", "link", "del", "conch-hub0")
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
