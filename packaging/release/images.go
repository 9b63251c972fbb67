package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// runAs is the user id in images, as in the Dockerfile's.
const runAs = 65532

// certificates is the path of the certificate authorities in images.
const certificates = "etc/ssl/certs/ca-certificates.crt"

// inImages are the programs with images. ahp-connect serves programs on the same machine.
var inImages = []string{"relay", "host-agent"}

// images makes a Linux image of each of inImages, with a static binary, as a
// multi-platform OCI layout in a tar for skopeo, podman and crane.
func (r *release) images() error {
	roots, err := os.ReadFile("/" + certificates)
	if err != nil {
		return fmt.Errorf("%w (Debian: ca-certificates)", err)
	}
	for _, name := range inImages {
		var index v1.ImageIndex = mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
		for _, t := range targets {
			if t.system != "linux" {
				continue
			}
			image, err := r.image(name, t, roots)
			if err != nil {
				return err
			}
			index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: t.system, Architecture: t.processor}}})
		}
		if err := r.layout(name, index); err != nil {
			return err
		}
	}
	return nil
}

func (r *release) image(name string, t target, roots []byte) (v1.Image, error) {
	built, err := r.build(t)
	if err != nil {
		return nil, err
	}
	var program file
	for _, f := range built {
		if f.name == name {
			program = f
		}
	}
	system, err := r.tarOf("", []file{{"etc/", 0o755, nil}, {"etc/ssl/", 0o755, nil}, {"etc/ssl/certs/", 0o755, nil}, {certificates, 0o644, roots}, program}, 0)
	if err != nil {
		return nil, err
	}
	data, err := r.tarOf("", []file{{"data/", 0o700, nil}}, runAs)
	if err != nil {
		return nil, err
	}
	image := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	image = mutate.ConfigMediaType(image, types.OCIConfigJSON)
	for _, content := range [][]byte{system, data} {
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }, tarball.WithMediaType(types.OCILayer))
		if err != nil {
			return nil, err
		}
		if image, err = mutate.AppendLayers(image, layer); err != nil {
			return nil, err
		}
	}
	config := &v1.ConfigFile{OS: t.system, Architecture: t.processor, Created: v1.Time{Time: r.when}, RootFS: v1.RootFS{Type: "layers"}}
	if old, err := image.ConfigFile(); err == nil {
		config.RootFS = old.RootFS
	}
	config.Config = v1.Config{
		User: fmt.Sprintf("%d:%[1]d", runAs), Entrypoint: []string{"/" + name}, Volumes: map[string]struct{}{"/data": {}},
		Labels: map[string]string{"org.opencontainers.image.version": r.version, "org.opencontainers.image.licenses": "Apache-2.0"},
	}
	switch name {
	case "relay":
		config.Config.Cmd = []string{"serve"}
		config.Config.Env = []string{"AHP_RELAY_DATA_DIR=/data", "AHP_RELAY_LISTEN=0.0.0.0:8484", "AHP_RELAY_LISTEN_PLAIN=true"}
		config.Config.ExposedPorts = map[string]struct{}{"8484/tcp": {}}
	case "host-agent":
		config.Config.Cmd = []string{"run"}
		config.Config.Env = []string{"AHP_AGENT_STATE_DIR=/data"}
	}
	return mutate.ConfigFile(image, config)
}

// layout writes an index of images as a file.
func (r *release) layout(name string, index v1.ImageIndex) error {
	dir, err := os.MkdirTemp("", "ahp-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if _, err := layout.Write(dir, mutate.AppendManifests(empty.Index, mutate.IndexAddendum{
		Add: index, Descriptor: v1.Descriptor{Annotations: map[string]string{"org.opencontainers.image.ref.name": "ahp-" + name + ":" + r.version}},
	})); err != nil {
		return err
	}
	files, err := read(dir)
	if err != nil {
		return err
	}
	data, err := r.tarOf("", files, 0)
	if err != nil {
		return err
	}
	return r.write(fmt.Sprintf("ahp-%s_%s_oci.tar", name, r.version), data)
}

// read returns the files below a directory, by name.
func read(dir string) (list []file, err error) {
	err = filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		list = append(list, file{filepath.ToSlash(name), 0o644, data})
		return err
	})
	return list, err
}
