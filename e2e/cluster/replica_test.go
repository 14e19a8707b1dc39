// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// replica is a conch of the release: a process of this machine. It has a state directory of its own, as on a machine of its own.
type replica struct {
	r              *rig
	state, address string
	process        *exec.Cmd // nil where none was started since the last stop
	log            *os.File
	// ended is closed once the process has.
	ended chan struct{}
	// away: clients know that it ends, and ask the others.
	away atomic.Bool
}

func (r *rig) another(name, address string) *replica {
	return &replica{r: r, state: filepath.Join(r.dir, name), address: address}
}

// second and third are further replicas.
func (r *rig) second() *replica { return r.another("second", "127.0.0.1:18700") }
func (r *rig) third() *replica  { return r.another("third", "127.0.0.1:18900") }

func (c *replica) name() string { return filepath.Base(c.state) }

// config is a conch's conch.yaml, log its log, and port the first digits of its ports.
func (c *replica) config() string  { return c.state + ".yaml" }
func (c *replica) logFile() string { return filepath.Join(c.r.dir, "log", c.name()+".log") }
func (c *replica) port() string    { return strings.TrimSuffix(c.address, "00") }

// tritonctl asks a conch.
func (c *replica) tritonctl(args ...string) (string, error) {
	return output(c.r.t.Context(), filepath.Join(c.r.bin, "tritonctl"), append([]string{"--admin", "unix://" + c.state + "/admin.sock"}, args...)...)
}

func (c *replica) writeConfig() {
	r := c.r
	inside, outside := r.mounts(os.Getenv("CONCH_TRITON_HOME"))
	text := fmt.Sprintf(`
repository: %s/models
state: %s
listen: {grpc: "%s01", http: "%s", metrics: "%s02", admin: "unix://%s/admin.sock"}
driver:
  kind: kubernetes
  startTimeout: 2m
  kubernetes:
    kubeconfig: %s
    namespace: %s
    owner: conch-release
    image: %s
    gpus: {driver: %s}
    models: {path: %s, volume: {hostPath: {path: %s}}}
    podTemplate:
      spec:
        containers:
          - name: server
            imagePullPolicy: Never
            volumeMounts: [%s]
        volumes: [%s]
limits: {drain: 10s}
policy: {name: static, parameters: {partitions: "%s"}}
defaults: {slo: 2s}
`, r.dir, c.state, c.port(), c.address, c.port(), c.state, r.account("conch"), namespaceOfTests, TritonImage, Driver, r.volume(), r.volume(), inside, outside, sharesOfTests)
	must(r.t, os.WriteFile(c.config(), []byte(text), 0o644))
}

// start starts conch, and returns once it serves.
func (c *replica) start() time.Duration {
	c.r.t.Helper()
	begin := time.Now()
	c.launch()
	c.serves()
	return time.Since(begin)
}

// launch starts conch.
func (c *replica) launch() {
	c.r.t.Helper()
	log, err := os.OpenFile(c.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	must(c.r.t, err)
	process, ended := exec.Command(filepath.Join(c.r.bin, "conch"), "--config", c.config(), "--log-format", "text"), make(chan struct{})
	process.Stdout, process.Stderr = log, log
	process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // or it keeps its ports where the tests run out of time
	must(c.r.t, process.Start())
	c.process, c.log, c.ended = process, log, ended
	go func() {
		_ = process.Wait() // its log says how it ended
		close(ended)
	}()
}

// join starts conch by its conch.yaml as it is to be, and returns once it takes requests.
func (c *replica) join() *replica {
	c.r.t.Helper()
	c.writeConfig()
	c.launch()
	c.ready()
	return c
}

// again starts a conch that has ended, or ends here and now, as a Deployment does. Its log begins anew.
func (c *replica) again() {
	c.r.t.Helper()
	c.stop(syscall.SIGKILL)
	must(c.r.t, os.Rename(c.logFile(), c.logFile()+".before"))
	c.launch()
	c.ready()
	c.away.Store(false)
}

// stop ends conch by a signal, and waits for its end.
func (c *replica) stop(signal syscall.Signal) {
	if c.process == nil {
		return
	}
	_ = c.process.Process.Signal(signal) // it may have ended
	c.ends()
}

// ends waits until conch has ended.
func (c *replica) ends() {
	<-c.ended
	_ = c.log.Close()
	c.process = nil
}

// signal sends one to a conch that goes on, or ends later.
func (c *replica) signal(signal syscall.Signal) {
	c.r.t.Helper()
	must(c.r.t, c.process.Process.Signal(signal))
}

// hasEnded reports whether conch has.
func (c *replica) hasEnded() bool {
	if c.process == nil {
		return true
	}
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// yields waits until a conch has ended because another one leads.
func (c *replica) yields() {
	c.r.t.Helper()
	select {
	case <-c.ended:
	case <-time.After(time.Minute):
		c.r.t.Fatalf("%s does not end though another leads", c.name())
	}
	c.stop(syscall.SIGKILL)
	c.says("leads release conch by now: this one ends")
}

// serves waits until conch answers for both models.
func (c *replica) serves() {
	c.r.t.Helper()
	c.r.eventually(c.name()+" serves", 4*time.Minute, func() error {
		if c.hasEnded() {
			c.r.t.Fatalf("conch has ended; %s says why", c.logFile())
		}
		for _, model := range []string{"one", "two"} {
			if err := inferAt(c.address, model); err != nil {
				return err
			}
		}
		return nil
	})
}

// says waits until conch's log has a text.
func (c *replica) says(text string) {
	c.r.t.Helper()
	c.r.eventually(c.name()+" says "+text, time.Minute, func() error {
		log, err := os.ReadFile(c.logFile())
		if err == nil && !bytes.Contains(log, []byte(text)) {
			err = fmt.Errorf("it said: %s", log[max(0, len(log)-2000):])
		}
		return err
	})
}

// ready waits until conch's readiness probe says that it takes requests.
func (c *replica) ready() {
	c.r.t.Helper()
	c.r.eventually(c.name()+" is ready", time.Minute, func() error {
		_, err := c.scrape("/readyz")
		return err
	})
}

// leads waits until conch itself executes: then it answers operators.
func (c *replica) leads() {
	c.r.t.Helper()
	c.r.eventually(c.name()+" leads", time.Minute, c.asOwner)
	c.ready()
}

// asOwner is nil where conch answers what the owner alone does.
func (c *replica) asOwner() error {
	_, err := c.tritonctl("plan", "show", "-o", "name")
	return err
}

// follows checks that a conch answers what it has read of the release's state, and names the owner for the rest.
func (c *replica) follows(owner *replica) {
	t := c.r.t
	t.Helper()
	want, err := owner.tritonctl("plan", "history", "-o", "name")
	must(t, err)
	c.r.eventually("the follower has the history", time.Minute, func() error {
		got, err := c.tritonctl("plan", "history", "-o", "name")
		if err == nil && got != want {
			err = fmt.Errorf("%q, and not %q", got, want)
		}
		return err
	})
	out, err := c.tritonctl("plan", "apply", "--yes")
	if err == nil || !strings.Contains(fmt.Sprint(out, err), "this replica follows: ask ") {
		t.Errorf("the follower takes orders: %s %v", out, err)
	}
}

// metric waits until a series of conch's is above 0.
func (c *replica) metric(series string) {
	c.r.t.Helper()
	c.r.eventually(series, time.Minute, func() error {
		page, err := c.scrape("/metrics")
		if err == nil && (!strings.Contains(page, series+" ") || strings.Contains(page, series+" 0\n")) {
			err = errors.New(page)
		}
		return err
	})
}

// scrape asks conch's metrics door.
func (c *replica) scrape(path string) (string, error) {
	answer, err := http.Get("http://" + c.port() + "02" + path)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("HTTP %d: %s", answer.StatusCode, text)
	}
	return string(text), err
}
