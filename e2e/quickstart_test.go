// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"bytes"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/rig"
)

// doubleModel is the model of the quickstarts: y = 2x. It writes down when it is loaded.
const doubleModel = `import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        with open("LOADS", "a") as f:
            f.write("loaded\n")

    def execute(self, requests):
        return [pb.InferenceResponse([pb.Tensor("y", 2 * pb.get_input_tensor_by_name(r, "x").as_numpy())]) for r in requests]
`

const doubleConfig = `name: "double" backend: "python" max_batch_size: 8
input [{ name: "x" data_type: TYPE_FP32 dims: [4] }] output [{ name: "y" data_type: TYPE_FP32 dims: [4] }]
instance_group [{ count: 1 kind: KIND_CPU }]
`

// curl is what the pages need of curl, for machines that lack it.
const curl = `#!/usr/bin/env python3
import sys, urllib.request
url, data, headers, arguments = None, None, {}, iter(sys.argv[1:])
for a in arguments:
    if a in ("-d", "--data"):
        data = next(arguments).encode()
    elif a == "-H":
        name, _, value = next(arguments).partition(":")
        headers[name] = value.strip()
    elif a != "-s":
        url = a if "://" in a else "http://" + a
sys.stdout.write(urllib.request.urlopen(urllib.request.Request(url, data, headers)).read().decode())
`

// newUser goes through a page of docs and runs what it says, in its order, with the addresses and directories of a test in place of the page's.
type newUser struct {
	t                   *testing.T
	page                string
	swaps               []string // what the page says, and what stands for it here
	environment         []string
	grpc, http, metrics string
	conch               *exec.Cmd
	log                 bytes.Buffer
}

func follow(t *testing.T, page string, swaps ...string) *newUser {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../docs", page))
	require.NoError(t, err)
	u := &newUser{t: t, page: string(text), environment: os.Environ()}
	for _, address := range []*string{&u.grpc, &u.http, &u.metrics} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		*address = l.Addr().String()
		require.NoError(t, l.Close())
	}
	dir := t.TempDir()
	if _, err := exec.LookPath("curl"); err != nil {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "curl"), []byte(curl), 0o700)) //nolint:gosec // a program
		u.environment = append(u.environment, "PATH="+dir+":"+os.Getenv("PATH"))
	}
	u.swaps = append(swaps, "/tmp/conch-admin.sock", filepath.Join(dir, "admin.sock"), "/tmp/conch-state", filepath.Join(dir, "state"),
		" bin/", " "+setting(t, "CONCH_BIN")+"/", " conch.yaml", " "+filepath.Join(dir, "conch.yaml"))
	t.Cleanup(func() {
		if u.conch != nil {
			_ = u.conch.Process.Kill()
			_ = u.conch.Wait()
		}
		if t.Failed() {
			t.Logf("conch's log:\n%s", u.log.String())
		}
	})
	return u
}

// here is what a text of the page is in this test.
func (u *newUser) here(text string) string {
	return strings.NewReplacer(u.swaps...).Replace(" " + text)[1:]
}

// commands are the lines of the page's code blocks that a user types, with those that continue them.
func (u *newUser) commands() (all []string) {
	for _, m := range regexp.MustCompile(`(?m)^    ((?:bin/|curl |export |kill )(?:.*\\\n)*.*)$`).FindAllStringSubmatch(u.page, -1) {
		all = append(all, m[1])
	}
	require.NotEmpty(u.t, all)
	return all
}

// start runs conch as the page says, with further flags, until it is ready.
func (u *newUser) start(command string, flags ...string) {
	u.t.Helper()
	u.conch = exec.Command("sh", "-c", "exec "+u.here(command)+" "+strings.Join(flags, " ")) //nolint:gosec,noctx // the page's; ended by the test
	u.conch.Stdout, u.conch.Stderr, u.conch.Env = &u.log, &u.log, u.environment
	require.NoError(u.t, u.conch.Start())
	require.Eventually(u.t, func() bool {
		r, err := http.Get("http://" + u.metrics + "/readyz") //nolint:noctx // on this machine
		if err != nil {
			return false
		}
		defer r.Body.Close()
		return r.StatusCode == http.StatusOK
	}, 2*time.Minute, 50*time.Millisecond, "conch is ready")
}

// run runs a command, which has to succeed and to say something.
func (u *newUser) run(command string) string {
	u.t.Helper()
	shell := exec.CommandContext(u.t.Context(), "sh", "-ec", u.here(command)) //nolint:gosec // the page's
	shell.Env = u.environment
	output, err := shell.CombinedOutput()
	require.NoError(u.t, err, "%s\n%s", command, output)
	require.NotEmpty(u.t, output, command)
	return string(output)
}

// repeat runs a command again and again until stop is called: a client.
func (u *newUser) repeat(command string) (stop func()) {
	u.t.Helper()
	client := exec.CommandContext(u.t.Context(), "sh", "-c", "while "+u.here(command)+"; do sleep .02; done") //nolint:gosec // the page's
	client.Env = u.environment
	require.NoError(u.t, client.Start())
	return func() {
		_ = client.Process.Kill()
		_ = client.Wait()
	}
}

func (u *newUser) export(command string) {
	u.environment = append(u.environment, u.here(strings.TrimPrefix(command, "export ")))
}

// end stops conch as the page says, by SIGTERM.
func (u *newUser) end() {
	u.t.Helper()
	require.NoError(u.t, u.conch.Process.Signal(syscall.SIGTERM))
	require.NoError(u.t, u.conch.Wait())
	u.conch = nil
}

// doubleRepository has it, and loads is the file that it writes to.
func doubleRepository(t *testing.T) (dir, loads string) {
	t.Helper()
	dir, loads = t.TempDir(), filepath.Join(t.TempDir(), "loads")
	write(t, dir, "double/config.pbtxt", doubleConfig)
	write(t, dir, "double/1/model.py", strings.Replace(doubleModel, "LOADS", loads, 1))
	return dir, loads
}

// A new user follows docs/quickstart-attach.md with a real Triton that runs already.
func TestQuickstartAttach(t *testing.T) {
	t.Parallel()
	repository, _ := doubleRepository(t)
	server, err := rig.StartServer(t.Context(), rig.ServerOptions{
		Server: setting(t, "CONCH_TRITONSERVER"), Repository: repository, Flags: []string{"--load-model=double"},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	u := follow(t, "quickstart-attach.md")
	u.swaps = append(u.swaps, "localhost:8001", "grpc="+server.GRPC+",http="+server.HTTP+",metrics="+server.Metrics, "localhost:8100", u.http, "localhost:8102", u.metrics)
	ran, called := map[string]string{}, "" // the client's call
	for _, command := range u.commands() {
		name := strings.Join(strings.Fields(command)[:2], " ")
		switch {
		case strings.HasPrefix(command, "export "):
			u.export(command)
		case strings.HasPrefix(command, "bin/conch --attach"):
			u.start(command, "--grpc", u.grpc, "--http", u.http, "--metrics", u.metrics)
		case strings.HasPrefix(command, "bin/tritonctl advise"):
			stop := u.repeat(called)
			ran[name] = u.run(strings.Replace(command, "advise", "advise --for 3s", 1)) // the page: a minute
			stop()
		default:
			ran[name] += u.run(command)
			if strings.Contains(command, "/infer") {
				called = command
			}
		}
	}
	require.Contains(t, ran["curl -s"], `"ok":true`)
	require.Contains(t, ran["curl -s"], `"data":[2.0,4.0,6.0,8.0]`, "the server's answer")
	require.Regexp(t, `double +ready`, ran["bin/tritonctl model"])
	require.Contains(t, ran["bin/tritonctl gpu"], "gpu0")
	require.Contains(t, ran, "bin/tritonctl advise")
	u.end()
}

// A new user follows docs/quickstart-own.md: conch starts the servers, dies, takes them over, and is undone.
func TestQuickstartOwn(t *testing.T) {
	t.Parallel()
	repository, loads := doubleRepository(t)
	u := follow(t, "quickstart-own.md", "/models", repository)
	config := regexp.MustCompile(`(?m)^    # conch.yaml\n((?:    .*\n)+)`).FindStringSubmatch(u.page)
	require.NotNil(t, config)
	u.swaps = append(u.swaps, `":8001"`, `"`+u.grpc+`"`, `":8000"`, `"`+u.http+`"`, `":8002"`, `"`+u.metrics+`"`, "localhost:8002", u.metrics,
		"/opt/tritonserver/bin/tritonserver", setting(t, "CONCH_TRITONSERVER"))
	require.NoError(t, os.WriteFile(u.here(" conch.yaml")[1:], []byte(u.here(strings.ReplaceAll(config[1], "\n    ", "\n")[4:])), 0o600))

	var started string
	ran := map[string]string{}
	for _, command := range u.commands() {
		switch {
		case strings.HasPrefix(command, "export "):
			u.export(command)
		case strings.HasPrefix(command, "bin/conch --config"):
			started = command
			u.start(command)
		case strings.HasPrefix(command, "kill "):
			shell := exec.CommandContext(t.Context(), "sh", "-ec", u.here(command)) //nolint:gosec // the page's
			require.NoError(t, shell.Run())
			var killed *exec.ExitError
			require.ErrorAs(t, u.conch.Wait(), &killed)
			require.Equal(t, syscall.SIGKILL, killed.Sys().(syscall.WaitStatus).Signal())
			u.start(started)
		default:
			ran[strings.Join(strings.Fields(command)[:2], " ")] = u.run(command)
		}
	}
	require.Contains(t, ran["bin/tritonctl repo"], "nothing is wrong")
	require.Contains(t, ran["bin/conch config"], "is valid")
	require.NotContains(t, ran["bin/conch config"], "warning")
	require.Regexp(t, `double +ready`, ran["bin/tritonctl model"])
	require.Regexp(t, `gpu0 .*double`, ran["bin/tritonctl plan"])
	require.Contains(t, u.run("bin/tritonctl events --kind servers_taken_over"), "1 running server of the conch before taken over: gpu0")
	loaded, err := os.ReadFile(loads)
	require.NoError(t, err)
	require.Equal(t, "loaded\n", string(loaded), "the next conch takes the server over, with its models")
	u.end()
	after, err := os.ReadFile(filepath.Join(repository, "double", "config.pbtxt"))
	require.NoError(t, err)
	require.Equal(t, doubleConfig, string(after))
}

// A new user follows the example of docs/ensembles.md: its script writes the models, conch executes the steps, and the page says what tritonctl prints.
func TestTheExampleOfEnsembles(t *testing.T) {
	t.Parallel()
	u, dir := follow(t, "ensembles.md"), t.TempDir()
	script := regexp.MustCompile("(?s)\n```sh\n(.*?)```\n").FindStringSubmatch(u.page)
	require.NotNil(t, script)
	shell := exec.CommandContext(t.Context(), "sh", "-ec", script[1]) //nolint:gosec // the page's
	shell.Dir = dir
	said, err := shell.CombinedOutput()
	require.NoError(t, err, string(said))
	c := serve(t, rig.ConchOptions{Repository: filepath.Join(dir, "repo"), GPUs: 1})
	u.swaps = append(u.swaps, "localhost:8000", c.HTTP)

	printed := regexp.MustCompile(`(?m)^    tritonctl (model get chain)\n\n((?:    .*\n)+)`).FindStringSubmatch(u.page)
	require.NotNil(t, printed)
	got, code := tritonctl(t, c, strings.Fields(printed[1])...)
	require.Zero(t, code, got)
	for line := range strings.Lines(printed[2]) {
		if line = strings.TrimSpace(line); line != "..." {
			require.Contains(t, got, line+"\n")
		}
	}
	commands := u.commands()
	require.Len(t, commands, 1)
	answer := u.run(commands[0])
	require.Contains(t, answer, `"data":[4.0,5.0,6.0,7.0]`, "each of the three steps adds one")
	require.Contains(t, answer, `"sequence_id":0`)
}
