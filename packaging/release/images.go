package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// runAs is the user id in images, as in the Dockerfile's.
const runAs = 65532

// certificates is the path of the certificate authorities, on this machine and in images.
const certificates = "etc/ssl/certs/ca-certificates.crt"

// inImages are the programs with images. ahp-connect serves programs on the same machine.
var inImages = []string{"relay", "host-agent"}

// images makes a Linux image of each of inImages, with a static binary, as a
// multi-platform OCI layout in a tar for skopeo, podman and crane.
func (r *release) images() error {
	roots, err := os.ReadFile("/" + certificates)
	if err != nil {
		return fmt.Errorf("%w; install the CA certificates (on Debian, the package ca-certificates)", err)
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
		listed, err := plain(index)
		if err != nil {
			return err
		}
		if err := r.layout(name, listed); err != nil {
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

// A plainIndex is an index without artifactType, which older registries and copying tools
// drop: the signed digest would then be another.
type plainIndex struct {
	of       v1.ImageIndex
	manifest *v1.IndexManifest
	raw      []byte
}

func plain(index v1.ImageIndex) (plainIndex, error) {
	manifest, err := index.IndexManifest()
	if err != nil {
		return plainIndex{}, err
	}
	manifest = manifest.DeepCopy()
	for i := range manifest.Manifests {
		manifest.Manifests[i].ArtifactType = ""
	}
	raw, err := json.Marshal(manifest)
	return plainIndex{index, manifest, raw}, err
}

func (p plainIndex) IndexManifest() (*v1.IndexManifest, error) { return p.manifest, nil }
func (p plainIndex) RawManifest() ([]byte, error)              { return p.raw, nil }
func (p plainIndex) Size() (int64, error)                      { return int64(len(p.raw)), nil }
func (p plainIndex) Digest() (v1.Hash, error)                  { return partial.Digest(p) }
func (p plainIndex) MediaType() (types.MediaType, error)       { return p.of.MediaType() }
func (p plainIndex) Image(h v1.Hash) (v1.Image, error)         { return p.of.Image(h) }

// ImageIndex implements [v1.ImageIndex].
func (p plainIndex) ImageIndex(h v1.Hash) (v1.ImageIndex, error) { return p.of.ImageIndex(h) }

// layout writes an index of images as a file and, with a key, its signature as a second file.
func (r *release) layout(name string, index v1.ImageIndex) error {
	ref := "ahp-" + name
	if err := r.archiveOf(fmt.Sprintf("%s_%s_oci.tar", ref, r.version), mutate.IndexAddendum{
		Add: index, Descriptor: v1.Descriptor{Annotations: map[string]string{refName: ref + ":" + r.version}},
	}); err != nil || r.signer == nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	signature, err := r.imageSignature(ref, digest)
	if err != nil {
		return err
	}
	tag := ref + ":" + strings.ReplaceAll(digest.String(), ":", "-") + ".sig"
	return r.archiveOf(fmt.Sprintf("%s_%s_oci.sig.tar", ref, r.version), mutate.IndexAddendum{
		Add: signature, Descriptor: v1.Descriptor{Annotations: map[string]string{refName: tag}},
	})
}

// refName is OCI's annotation for the name under which an archive's image is pushed.
const refName = "org.opencontainers.image.ref.name"

// archiveOf writes an image or index as an OCI layout in a tar.
func (r *release) archiveOf(file string, content mutate.IndexAddendum) error {
	dir, err := os.MkdirTemp("", "ahp-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if _, err := layout.Write(dir, mutate.AppendManifests(empty.Index, content)); err != nil {
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
	return r.write(file, data)
}

// imageSignature returns the image that cosign verify looks for at the tag
// sha256-DIGEST.sig beside the signed image. Its only layer names DIGEST, and the layer's
// annotation is the layer's signature.
func (r *release) imageSignature(ref string, digest v1.Hash) (v1.Image, error) {
	payload, err := json.Marshal(map[string]any{
		"critical": map[string]any{
			"identity": map[string]string{"docker-reference": r.owner["IMAGES"] + "/" + ref},
			"image":    map[string]string{"docker-manifest-digest": digest.String()},
			"type":     "cosign container image signature",
		},
		"optional": map[string]string{"version": r.version, "commit": r.commit},
	})
	if err != nil {
		return nil, err
	}
	signature, err := r.signer.sign(payload)
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	return mutate.Append(image, mutate.Addendum{
		Layer:       static.NewLayer(payload, "application/vnd.dev.cosign.simplesigning.v1+json"),
		Annotations: map[string]string{"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(signature)},
	})
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
