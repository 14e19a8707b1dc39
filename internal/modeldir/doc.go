// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package modeldir opens files of model directories, which other people write: regular files of the directory alone.
//
// A pipe would be waited on for ever, a device has side effects when it is opened, and a link may lead to a file that whoever wrote the directory
// may not read. So a file is looked at before it is opened, is opened in a way that does not wait, and is looked at again. Links are followed
// where they stay inside the model's directory: relative ones, as of a version directory to another, or of Kubernetes to its "..data". A link that
// leads out, or that is absolute, is an error that wraps ErrOutside. The model's directory itself may be a link: its name is the operator's.
package modeldir
