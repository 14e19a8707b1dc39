// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
)

// models holds one directory per model with its config.pbtxt, and one python file per conch_builtin.
//
//go:embed models
var models embed.FS

var builtinParameter = regexp.MustCompile(`key: "conch_builtin" value \{ string_value: "([a-z_]+)" \}`)

// ModelNames lists the models of the suite.
func ModelNames() ([]string, error) {
	dirs, err := fs.ReadDir(models, "models")
	if err != nil {
		return nil, fmt.Errorf("conformance: %w", err)
	}
	var names []string
	for _, d := range dirs {
		if d.Name() != "python" {
			names = append(names, d.Name())
		}
	}
	return names, nil
}

// WriteModels writes the suite's models into a repository directory. They run in Triton's python backend (numpy below 2) and, by their
// conch_builtin parameter, in minitriton.
func WriteModels(dir string) error {
	names, err := ModelNames()
	if err != nil {
		return err
	}
	for _, name := range names {
		config, err := models.ReadFile("models/" + name + "/config.pbtxt")
		if err != nil {
			return fmt.Errorf("conformance: %w", err)
		}
		m := builtinParameter.FindSubmatch(config)
		if m == nil {
			return fmt.Errorf("conformance: the config of model %q has no conch_builtin parameter", name)
		}
		py, err := models.ReadFile("models/python/" + string(m[1]) + ".py")
		if err != nil {
			return fmt.Errorf("conformance: model %q: %w", name, err)
		}
		if err := WriteModel(dir, name, string(config), py); err != nil {
			return err
		}
	}
	return nil
}

// WriteModel writes one model with version 1. Without python the version directory stays empty.
func WriteModel(dir, name, config string, py []byte) error {
	version := filepath.Join(dir, name, "1")
	err := os.MkdirAll(version, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name, "config.pbtxt"), []byte(config), 0o644)
	}
	if err == nil && py != nil {
		err = os.WriteFile(filepath.Join(version, "model.py"), py, 0o644)
	}
	if err != nil {
		return fmt.Errorf("conformance: write model %q: %w", name, err)
	}
	return nil
}
