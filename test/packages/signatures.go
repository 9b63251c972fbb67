package main

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// checkSignatures checks all signatures of a release as its users can: with openssl,
// minisign and, if it is installed, cosign.
func checkSignatures(dist, work string) error {
	if err := has(dist, "SHA256SUMS.sig"); err != nil {
		return err
	}
	at := func(name string) string { return filepath.Join(dist, name) }
	signature := filepath.Join(work, "signature")
	if _, err := say("openssl", "base64", "-d", "-A", "-in", at("SHA256SUMS.sig"), "-out", signature); err != nil {
		return err
	}
	if _, err := say("openssl", "dgst", "-sha256", "-verify", at("release-key.pem"), "-signature", signature, at("SHA256SUMS")); err != nil {
		return err
	}
	if _, err := say("env", "-C", dist, "sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"); err != nil {
		return err
	}
	if _, err := say("minisign", "-Vm", at("SHA256SUMS"), "-p", at("minisign.pub")); err != nil {
		return err
	}
	subjects, err := checkProvenance(dist)
	if err != nil {
		return fmt.Errorf("provenance: %w", err)
	}
	for _, name := range inImages {
		if err := checkImageSignature(dist, name); err != nil {
			return fmt.Errorf("image of %s: %w", name, err)
		}
	}
	log.Printf("signatures are right, and provenance names %d files", subjects)
	if _, err := exec.LookPath("cosign"); err != nil {
		log.Print("cosign is not installed: its signatures are checked without it")
		return nil
	}
	_, err = say("cosign", "verify-blob", "--key", at("release-key.pem"), "--signature", at("SHA256SUMS.sig"), "--insecure-ignore-tlog", at("SHA256SUMS"))
	return err
}

// checkProvenance checks the signature of the provenance. The provenance must name the
// commit, and each file of the release with its checksum. It returns the number of
// files.
func checkProvenance(dist string) (int, error) {
	key, err := releaseKey(dist)
	if err != nil {
		return 0, err
	}
	var envelope struct {
		PayloadType string
		Payload     []byte
		Signatures  []struct{ Sig []byte }
	}
	text, err := os.ReadFile(filepath.Join(dist, "provenance.intoto.jsonl"))
	if err != nil {
		return 0, err
	}
	if err := json.Unmarshal(text, &envelope); err != nil {
		return 0, err
	}
	signed := sha256.Sum256(fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(envelope.PayloadType), envelope.PayloadType, len(envelope.Payload), envelope.Payload))
	if len(envelope.Signatures) != 1 || !ecdsa.VerifyASN1(key, signed[:], envelope.Signatures[0].Sig) {
		return 0, errors.New("the signature is wrong")
	}
	var statement struct {
		PredicateType string
		Subject       []struct {
			Name   string
			Digest map[string]string
		}
		Predicate struct {
			BuildDefinition struct {
				ResolvedDependencies []struct{ Digest map[string]string }
			}
		}
	}
	if err := json.Unmarshal(envelope.Payload, &statement); err != nil {
		return 0, err
	}
	commit, err := say("git", "rev-parse", "HEAD")
	if err != nil {
		return 0, err
	}
	from := statement.Predicate.BuildDefinition.ResolvedDependencies
	if statement.PredicateType != "https://slsa.dev/provenance/v1" || len(from) != 1 || from[0].Digest["gitCommit"] != commit {
		return 0, fmt.Errorf("the provenance is a statement of type %s about %v; want one about commit %s", statement.PredicateType, from, commit)
	}
	named := map[string]string{}
	for _, s := range statement.Subject {
		named[s.Name] = s.Digest["sha256"]
	}
	sums, err := os.ReadFile(filepath.Join(dist, "SHA256SUMS"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(sums)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		if name != "provenance.intoto.jsonl" && named[name] != sum {
			return 0, fmt.Errorf("the provenance names the sum %q for %s; want %s, as in SHA256SUMS", named[name], name, sum)
		}
	}
	return len(named), nil
}

// releaseKey returns the public key of the release.
func releaseKey(dist string) (*ecdsa.PublicKey, error) {
	text, err := os.ReadFile(filepath.Join(dist, "release-key.pem"))
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("release-key.pem has no key")
	}
	public, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	key, ok := public.(*ecdsa.PublicKey)
	if !ok {
		return nil, errors.New("release-key.pem is no ECDSA key")
	}
	return key, nil
}

// A manifest is an image index or an image manifest as OCI defines them.
type manifest struct {
	Manifests, Layers []struct {
		Digest      string
		Annotations map[string]string
	}
}

// inArchive decodes a JSON file in an OCI archive, and returns the file's text.
func inArchive(archive, name string, into any) (string, error) {
	text, err := say("tar", "-xOf", archive, name)
	if err == nil {
		err = json.Unmarshal([]byte(text), into)
	}
	return text, err
}

// blob returns the path for a digest in an OCI archive.
func blob(digest string) string { return "blobs/" + strings.ReplaceAll(digest, ":", "/") }

// checkImageSignature checks an image's signature as cosign verify does. The signature
// image's tag and payload must name the image's digest, and the annotation must have a
// valid signature over the payload.
func checkImageSignature(dist, name string) error {
	key, err := releaseKey(dist)
	if err != nil {
		return err
	}
	image, err := only(filepath.Join(dist, "ahp-"+name+"_*_oci.tar"))
	if err != nil {
		return err
	}
	var images, signatures, signature manifest
	beside := strings.TrimSuffix(image, ".tar") + ".sig.tar"
	if _, err := inArchive(image, "index.json", &images); err != nil {
		return err
	}
	if _, err := inArchive(beside, "index.json", &signatures); err != nil {
		return err
	}
	if len(images.Manifests) != 1 || len(signatures.Manifests) != 1 {
		return fmt.Errorf("%d images, %d signatures; want one of each", len(images.Manifests), len(signatures.Manifests))
	}
	digest := images.Manifests[0].Digest
	if tag := signatures.Manifests[0].Annotations["org.opencontainers.image.ref.name"]; !strings.HasSuffix(tag, ":"+strings.ReplaceAll(digest, ":", "-")+".sig") {
		return fmt.Errorf("the signature's tag is %s; want that of %s", tag, digest)
	}
	if _, err := inArchive(beside, blob(signatures.Manifests[0].Digest), &signature); err != nil {
		return err
	}
	var payload struct {
		Critical struct {
			Image map[string]string
			Type  string
		}
	}
	text, err := inArchive(beside, blob(signature.Layers[0].Digest), &payload)
	if err != nil {
		return err
	}
	der, err := base64.StdEncoding.DecodeString(signature.Layers[0].Annotations["dev.cosignproject.cosign/signature"])
	if err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(text))
	if payload.Critical.Image["docker-manifest-digest"] != digest || payload.Critical.Type != "cosign container image signature" || !ecdsa.VerifyASN1(key, sum[:], der) {
		return fmt.Errorf("the payload %s is not a signature of %s", text, digest)
	}
	return nil
}
