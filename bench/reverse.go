// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/conch-serving/conch/internal/rig"
)

// reverse is a common reverse proxy in front of a Triton.
type reverse struct {
	name string
	// arguments start it in the foreground with the configuration at a path.
	arguments func(config, directory string) []string
	// config is its configuration. Timeouts are long and limits high: it is to be compared where it works well. HAProxy 2.6 loses calls of
	// 600 KB where many share a connection to the server, so that it does not reuse those for gRPC.
	config func(server *rig.Server, grpc, http, directory string) string
}

// reverses are nginx and HAProxy, as gRPC (HTTP/2 without TLS) and HTTP/1.1 proxies with kept connections.
var reverses = [...]reverse{
	{
		name: "nginx",
		arguments: func(config, directory string) []string {
			return []string{"-p", directory, "-c", config, "-e", "stderr"}
		},
		config: func(server *rig.Server, grpc, http, directory string) string {
			return fmt.Sprintf(`daemon off; worker_processes auto; pid %[4]s/nginx.pid; error_log stderr error;
events { worker_connections 4096; }
http {
  access_log off; client_max_body_size 0; client_body_buffer_size 2m; keepalive_requests 100000000; tcp_nodelay on;
  client_body_temp_path %[4]s/body; proxy_temp_path %[4]s/proxy; fastcgi_temp_path %[4]s/f; uwsgi_temp_path %[4]s/u; scgi_temp_path %[4]s/s;
  http2_max_concurrent_streams 1024; grpc_buffer_size 1m; proxy_buffer_size 64k; proxy_buffers 64 64k; proxy_busy_buffers_size 1m;
  upstream grpc_server { server %[1]s; keepalive 256; keepalive_requests 100000000; }
  upstream http_server { server %[2]s; keepalive 256; keepalive_requests 100000000; }
  server { listen %[3]s http2; location / { grpc_pass grpc://grpc_server; grpc_read_timeout 1h; } }
  server { listen %[5]s; location / { proxy_pass http://http_server; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_read_timeout 1h; } }
}
`, server.GRPC, server.HTTP, grpc, directory, http)
		},
	},
	{
		name:      "haproxy",
		arguments: func(config, _ string) []string { return []string{"-db", "-f", config} },
		config: func(server *rig.Server, grpc, http, _ string) string {
			return fmt.Sprintf(`global
  maxconn 4096
defaults
  mode http
  timeout connect 10s
  timeout client 1h
  timeout server 1h
frontend grpc_in
  bind %s proto h2
  default_backend grpc_out
backend grpc_out
  http-reuse never
  server triton %s proto h2
frontend http_in
  bind %s
  default_backend http_out
backend http_out
  http-reuse always
  server triton %s
`, grpc, server.GRPC, http, server.HTTP)
		},
	},
}

// process is a reverse proxy that runs.
type process struct {
	grpc, http string
	cmd        *exec.Cmd
}

// startReverse starts one of the reverses in front of a server. Programs is the directory that scripts/setup/proxies.sh makes.
func startReverse(ctx context.Context, r reverse, programs, directory string, server *rig.Server) (*process, error) {
	directory = filepath.Join(directory, r.name)
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return nil, err
	}
	p := &process{}
	var err error
	for _, address := range []*string{&p.grpc, &p.http} {
		if *address, err = freeAddress(ctx); err != nil {
			return nil, err
		}
	}
	config := filepath.Join(directory, "conf")
	if err := os.WriteFile(config, []byte(r.config(server, p.grpc, p.http, directory)), 0o600); err != nil {
		return nil, err
	}
	p.cmd = exec.Command(filepath.Join(programs, r.name), r.arguments(config, directory)...) // ended by Close
	p.cmd.Stderr = os.Stderr
	// nginx's workers end with its master; the group makes sure of both. No signal at the parent's death: it is the death of the thread that
	// started the process, and Go ends threads.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", r.name, err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.http)
		if err == nil {
			return p, conn.Close()
		}
		if time.Now().After(deadline) {
			_ = p.Close() // it never served
			return nil, fmt.Errorf("%s does not listen at %s: %w", r.name, p.http, err)
		}
	}
}

// freeAddress is an address of this machine at which nothing listens now.
func freeAddress(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// Close ends the process and its workers.
func (p *process) Close() error {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGTERM) // it may have ended
	_ = p.cmd.Wait()                                      // how it ends is not what is measured
	return nil
}
