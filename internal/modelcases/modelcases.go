// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package modelcases is model directories on the edge of what a Triton loads: those that it refuses, each with what has to be reported of
// it, and those that look odd and load nevertheless. Code that judges models without a Triton is held to them, and so is a real one.
//
// A server with the python backend alone decides them, without a GPU and without auto-completion. So nothing here is about files of
// other backends, about GPUs, about Python that fails when it runs, or about memory; these cannot be known without running them.
package modelcases

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Case is one model directory.
type Case struct {
	// Name is the directory's, and so the model's.
	Name string
	// Config is the config.pbtxt; empty where there is none.
	Config string
	// Files are those beside it; nil is a version 1 that works. A path that ends in a slash is an empty directory, and a content that begins with
	// "-> " is that of a symbolic link.
	Files map[string]string
	// Want is what has to be reported first of a model that a Triton refuses: behind the name "/PATH:LINE: text", or how that begins. It is empty
	// where a Triton loads the model.
	Want string
	// Hangs is set where a Triton neither loads nor refuses the model, but hangs on it for ever.
	Hangs bool
	// Kills is set where a Triton that is asked to load the model ends.
	Kills bool
}

// All are the refused ones and the odd ones.
func All() []Case { return slices.Concat(Refused(), Odd()) }

// Python is a model.py that loads.
const Python = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"

// what most configurations begin with: what follows stands in line 5.
const (
	head  = "backend: \"python\"\nmax_batch_size: 8\n"
	in    = "input { name: \"A\" data_type: TYPE_FP32 dims: 4 }\n"
	out   = "output { name: \"B\" data_type: TYPE_FP32 dims: 4 }\n"
	whole = head + in + out
)

// Helpers are the models that ensembles among the cases call.
func Helpers() []Case {
	return []Case{
		{Name: "helper_step", Config: whole},
		{Name: "helper_text", Config: head + "input { name: \"A\" data_type: TYPE_STRING dims: 4 }\n" + "output { name: \"B\" data_type: TYPE_STRING dims: 4 }\n"},
		{Name: "helper_small", Config: strings.Replace(whole, "8", "2", 1)},
		{Name: "helper_one", Config: strings.Replace(whole, "8", "0", 1)},
		{Name: "helper_optional", Config: whole + "input { name: \"C\" data_type: TYPE_FP32 dims: 4 optional: true }\n"},
		{Name: "helper_two_in", Config: head + in + strings.Replace(in, "A", "C", 1) + out},
		{Name: "helper_two_out", Config: whole + strings.Replace(out, "B", "D", 1)},
		{Name: "helper_free", Config: head + strings.Replace(in, "dims: 4", "dims: -1", 1) + out},
		{Name: "helper_decoupled", Config: whole + "model_transaction_policy { decoupled: true }\n"},
	}
}

func (c Case) files() map[string]string {
	files := map[string]string{}
	if c.Config != "" {
		files["config.pbtxt"] = c.Config
	}
	if c.Files == nil {
		files["1/model.py"] = Python
	}
	for path, content := range c.Files {
		files[path] = content
	}
	return files
}

// Write makes a repository of the cases in directory.
func Write(directory string, cases ...Case) error {
	var errs []error
	for _, c := range cases {
		errs = append(errs, os.MkdirAll(filepath.Join(directory, c.Name), 0o755))
		for path, content := range c.files() {
			errs = append(errs, write(filepath.Join(directory, c.Name, filepath.FromSlash(path)), strings.HasSuffix(path, "/"), content))
		}
	}
	return errors.Join(errs...)
}

func write(to string, isDirectory bool, content string) error {
	if isDirectory {
		return os.MkdirAll(to, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if target, link := strings.CutPrefix(content, "-> "); link {
		return os.Symlink(filepath.FromSlash(target), to)
	}
	return os.WriteFile(to, []byte(content), 0o644)
}
