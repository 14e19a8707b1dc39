// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/conch-serving/conch/plugins/policy"
)

// ParseEndpoints reads what --attach says: endpoints separated by commas, each
// the host:port of a server's gRPC protocol, or spelt out as
// grpc=host:port,http=host:port,metrics=host:port. Every grpc= begins another
// endpoint.
func ParseEndpoints(values []string) ([]Endpoint, error) {
	var all []Endpoint
	for _, item := range strings.Split(strings.Join(values, ","), ",") {
		key, value, spelt := strings.Cut(strings.TrimSpace(item), "=")
		switch {
		case item == "":
			return nil, fmt.Errorf("--attach: an address is empty in %q; write host:port,host:port", strings.Join(values, ","))
		case !spelt:
			all = append(all, Endpoint{GRPC: key})
			continue
		case key == "grpc":
			all = append(all, Endpoint{GRPC: value})
			continue
		case len(all) == 0:
			return nil, fmt.Errorf("--attach: %q comes before the endpoint that it belongs to; begin with grpc=host:port", item)
		}
		last := &all[len(all)-1]
		switch key {
		case "http":
			last.HTTP = value
		case "metrics":
			last.Metrics = value
		case "repository":
			last.Repository = value
		case "executions":
			n, err := strconv.Atoi(value)
			if err != nil {
				return nil, fmt.Errorf("--attach: executions=%s is not a number", value)
			}
			last.Executions = n
		default:
			return nil, fmt.Errorf("--attach: %q is not known%s", key, suggest(key, []string{"grpc", "http", "metrics", "repository", "executions"}))
		}
	}
	return all, nil
}

// provisionAttach fills in what is different in front of servers that others
// run: they are on Triton's ports already, and nothing of theirs is changed
// unless the operator says so.
func (c *Config) provisionAttach() {
	if c.Driver.Kind != DriverAttach {
		return
	}
	fill(&c.Mode, ModeObserve)
	fill(&c.ModelControl.Clients, ClientsFiles) // the servers have the last word
	fill(&c.Listen.GRPC, ":8101")
	fill(&c.Listen.HTTP, ":8100")
	fill(&c.Listen.Metrics, ":8102")
	for i := range c.Driver.Endpoints {
		e := &c.Driver.Endpoints[i]
		fill(&e.HTTP, beside(e.GRPC, -1))
		fill(&e.Metrics, beside(e.GRPC, +1))
	}
}

// beside is an address whose port is by so much another, as Triton's 8000, 8001
// and 8002 are; empty where there is none.
func beside(address string, by int) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return ""
	}
	n, err := strconv.Atoi(port)
	if err != nil || n+by < 1 || n+by > 65535 {
		return ""
	}
	return net.JoinHostPort(host, strconv.Itoa(n+by))
}

func (v *validator) attach(c *Config) {
	d := c.Driver
	for path, set := range map[string]bool{
		"driver.tritonserver": d.TritonServer != "", "driver.backendDirectory": d.BackendDirectory != "",
		"driver.arguments": len(d.Arguments) > 0, "driver.environment": len(d.Environment) > 0,
	} {
		if set {
			v.problem(path, "has no meaning for the attach driver, which starts no tritonserver")
		}
	}
	if d.Service != (Service{}) {
		if d.SharedMemory {
			v.problem("driver.sharedMemory", "is on; servers in Pods share no memory with conch")
		}
		v.service(c)
		return
	}
	if len(d.Endpoints) == 0 {
		v.problem("driver.endpoints", "is missing; name the servers, for example [{grpc: localhost:8001}] (or use --attach, or driver.service in a cluster)")
	}
	if !c.GPUs.Auto && len(c.GPUs.List) > 0 {
		count := 0
		for _, g := range c.GPUs.List {
			count += g.Count
		}
		if count != len(d.Endpoints) {
			v.problem("gpus", "names %d and there are %d endpoints; say one for each endpoint, in their order, or auto", count, len(d.Endpoints))
		}
	}
	if d.SharedMemory && c.Limits.SharedMemory != nil && *c.Limits.SharedMemory == 0 {
		v.problem("driver.sharedMemory", "is on, and limits.sharedMemory is 0: nothing would be shared")
	}
	seen, writable := map[string]string{}, 0
	for i, e := range d.Endpoints {
		path := fmt.Sprintf("driver.endpoints[%d]", i)
		good := v.server(path+".grpc", e.GRPC)
		for _, door := range []struct{ key, address string }{{".http", e.HTTP}, {".metrics", e.Metrics}} {
			switch {
			case door.address == Off:
			case door.address != "":
				v.server(path+door.key, door.address)
			case good: // else it is the same mistake
				v.problem(path+door.key, "is missing, and there is no port beside that of %s; name host:port, or off", e.GRPC)
			}
		}
		for _, a := range []struct{ key, address string }{{"grpc", e.GRPC}, {"repository", e.Repository}} {
			if a.address == "" {
				continue
			}
			if other, twice := seen[a.address]; twice {
				v.problem(path+"."+a.key, "%s is that of %s too; every endpoint is a server of its own", a.address, other)
			}
			seen[a.address] = path
		}
		v.executions(path, e.Executions)
		if e.Repository == "" {
			continue
		}
		writable++
		if !filepath.IsAbs(e.Repository) {
			v.problem(path+".repository", "%q is not an absolute path", e.Repository)
		}
	}
	switch {
	case writable > 0 && writable < len(d.Endpoints):
		v.problem("driver.endpoints", "%d of %d name a repository; conch places models on all of them or on none", writable, len(d.Endpoints))
	case writable > 0 && c.Repository == "":
		v.problem("repository", "is missing; conch stages its models into the repositories of driver.endpoints")
	case writable == 0 && c.Repository != "":
		v.problem("repository", "has no meaning while the servers keep their own models; name the repository of every endpoint that conch may write, or leave it out")
	}
}

// service checks servers that a Service names.
func (v *validator) service(c *Config) {
	s := c.Driver.Service
	if len(c.Driver.Endpoints) > 0 {
		v.problem("driver.endpoints", "and driver.service both name the servers; leave one of them out")
	}
	switch {
	case s.Name != "" && s.Selector != "":
		v.problem("driver.service.selector", "and driver.service.name both choose Services; leave one of them out")
	case s.Name == "" && s.Selector == "":
		v.problem("driver.service.name", "is missing; name a Service, or choose Services by their labels with driver.service.selector")
	}
	v.executions("driver.service", s.Executions)
	if !c.GPUs.Auto && (len(c.GPUs.List) != 1 || c.GPUs.List[0].Count != 1) {
		v.problem("gpus", "has to name one GPU, which each of the servers behind driver.service has; or say auto")
	}
	if c.Repository != "" {
		v.problem("repository", "has no meaning while the servers keep their own models, as those behind driver.service do")
	}
}

// executions checks how many batches a server executes at once.
func (v *validator) executions(path string, n int) {
	if n < 0 || n > policy.MostExecutions {
		v.problem(path+".executions", "%d is not from 1 to %d; leave it out for one on each GPU that the server has instances on", n, policy.MostExecutions)
	}
}

// server checks an address to call, which unlike one to listen on needs a host
// and a port.
func (v *validator) server(path, address string) bool {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		v.problem(path, "%q is not host:port", address)
		return false
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		v.problem(path, "port %q is not a number from 1 to 65535", port)
		return false
	}
	return true
}
