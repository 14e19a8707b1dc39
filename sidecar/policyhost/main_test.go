// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policyhost_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	plugin "github.com/hashicorp/go-plugin"
	"go.uber.org/goleak"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/policyhost/confine"
)

// The test binary is its own collection of bad policies: a child started with
// modeVariable set serves the one of that name.
const (
	modeVariable = "CONCH_TEST_POLICY"
	fileVariable = "CONCH_TEST_FILE"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == launchWord {
		fmt.Fprintln(os.Stderr, confine.Main(os.Args[2:]))
		os.Exit(1)
	}
	if len(os.Args) > 1 && os.Args[1] == parentWord {
		fmt.Println(parent())
		return
	}
	if mode := os.Getenv(modeVariable); mode != "" {
		serve(mode)
		return
	}
	goleak.VerifyTestMain(m)
}

func serve(mode string) {
	switch mode {
	case "exit at start":
		fmt.Fprintln(os.Stderr, "no licence found")
		os.Exit(3)
	case "silent":
		time.Sleep(time.Minute)
	case "no handshake":
		fmt.Println("hello, I am a web server")
		time.Sleep(time.Minute)
	case "another's socket":
		fmt.Printf("%d|%d|unix|%s|grpc\n", plugin.CoreProtocolVersion, policy.ProtocolVersion, os.Getenv(fileVariable))
		time.Sleep(time.Minute)
	case "wrong version":
		plugin.Serve(&plugin.ServeConfig{
			HandshakeConfig:  plugin.HandshakeConfig{ProtocolVersion: 7, MagicCookieKey: policy.CookieKey, MagicCookieValue: policy.CookieValue},
			VersionedPlugins: map[int]plugin.PluginSet{7: policy.Plugins(fake{mode: "good"})[policy.ProtocolVersion]},
			GRPCServer:       plugin.DefaultGRPCServer,
		})
	default:
		policy.Serve(fake{mode: mode})
	}
}

// fake is a policy that misbehaves in one way.
type fake struct{ mode string }

func (f fake) Describe(ctx context.Context) (*policy.Description, error) {
	d := &policy.Description{
		Name: "fake", Version: "9.8.7", Summary: f.mode,
		Parameters: []*policy.Parameter{
			{Name: "colour", Type: policy.TypeString, DefaultValue: "blue"},
			{Name: "size", Type: policy.TypeInt, DefaultValue: "3"},
		},
	}
	switch f.mode {
	case "nameless":
		d.Name = ""
	case "needs profiles":
		d.Needs = []string{policy.NeedProfiles}
	case "needs magic":
		d.Needs = []string{"magic"}
	case "name of lines":
		d.Name = "fake\n\x1b[31mall is well"
	case "long name":
		d.Name = strings.Repeat("fake", 1<<20)
	case "many parameters":
		d.Parameters = slices.Repeat(d.Parameters, 10_000)
	case "long documentation":
		d.Parameters[0].Documentation = strings.Repeat("fake", 1<<20)
	case "hang at describe":
		<-ctx.Done()
		time.Sleep(time.Minute)
	}
	return d, nil
}

func (f fake) Plan(ctx context.Context, s *policy.Snapshot, h policy.Host) (*policy.Plan, error) {
	answer := &policy.Plan{SnapshotRevision: s.GetRevision(), Reasons: []*policy.Reason{
		{Text: fmt.Sprintf("colour=%s size=%s budget=%d models=%d env=%s",
			s.GetParameters()["colour"], s.GetParameters()["size"], s.GetPlanningBudgetUs(), len(s.GetModels()), environmentNames())},
	}}
	switch f.mode {
	case "hang":
		time.Sleep(time.Minute)
	case "freeze":
		if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
			return nil, err
		}
		// The signal may take a moment.
		time.Sleep(time.Minute)
	case "slow":
		time.Sleep(150 * time.Millisecond)
	case "exit":
		os.Exit(4)
	case "panic":
		panic("the policy lost its mind")
	case "other revision":
		answer.SnapshotRevision++
	case "undecodable":
		// Field 2 is a string, and 0xff is in no UTF-8.
		answer.ProtoReflect().SetUnknown([]byte{0x12, 0x01, 0xff})
	case "huge":
		answer.Reasons[0].Text = strings.Repeat("x", 2<<20)
	case "evaluate":
		// Asks twice, and says what it heard.
		first, second := &policy.Plan{Policy: "first"}, &policy.Plan{Policy: "second"}
		both, err := h.Evaluate(ctx, first, second)
		if err != nil {
			return nil, err
		}
		again, err := h.Evaluate(ctx, first)
		if err != nil {
			return nil, err
		}
		answer.Reasons[0].Text = fmt.Sprintf("%v %v %v", both[0].GetGoodput(), both[1].GetGoodput(), again[0].GetGoodput())
	case "endless questions":
		for {
			if _, err := h.Evaluate(ctx); err != nil {
				return nil, err
			}
		}
	case "remember":
		answer.Reasons[0].Text = fmt.Sprintf("%q", s.GetPolicyState())
		answer.PolicyState = append(s.GetPolicyState(), 'x')
	case "refuse":
		return nil, errors.New("the moon is wrong")
	case "refuse at length":
		return nil, errors.New("the moon is wrong" + strings.Repeat("!", 1<<20))
	case "chatty":
		fmt.Println("printed by the policy")
	case "child":
		// A child in a session of its own survives the kill of the group and holds
		// the pipes open.
		cmd := exec.CommandContext(context.Background(), "sleep", "3")
		cmd.Stdout, cmd.Stderr = originalStdout(), originalStdout()
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		time.Sleep(time.Minute)
	case "leave a child":
		// It answers, dies by itself between two calls, and leaves a child in its group.
		cmd := exec.CommandContext(context.Background(), "sleep", "600")
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		if err := os.WriteFile(os.Getenv(fileVariable), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600); err != nil {
			return nil, err
		}
		time.AfterFunc(100*time.Millisecond, func() { os.Exit(6) })
	case "flood":
		for i := range 50_000 {
			fmt.Fprintln(os.Stderr, "line", i)
			fmt.Println("print", i)
		}
	case "many names":
		answer.Policy, answer.PolicyVersion = fmt.Sprint("another ", s.GetRevision()), "0"
	case "fork bomb", "memory bomb", "files", "sockets", "read", "dial":
		answer.Reasons[0].Text = misuse(f.mode)
	case "empty partitions":
		for range 6 << 20 {
			answer.Partitions = append(answer.Partitions, nothing)
		}
	case "names":
		answer.Recipes = []*policy.Recipe{{Name: "r", Members: make([]string, 10_000_000)}}
	case "until told":
		// Dies in every call until the file appears.
		if _, err := os.Stat(os.Getenv(fileVariable)); err != nil {
			os.Exit(5)
		}
	}
	return answer, nil
}

// originalStdout is the pipe to the host; go-plugin has put another in the place
// of os.Stdout.
func originalStdout() *os.File { return os.NewFile(1, "stdout") }

func environmentNames() string {
	names := make([]string, 0, len(os.Environ()))
	for _, pair := range os.Environ() {
		name, _, _ := strings.Cut(pair, "=")
		names = append(names, name)
	}
	return strings.Join(names, ",")
}
