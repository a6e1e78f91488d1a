package deploytest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// Actions are pinned by commit and get no token by the checkout, the tag is on main, and releases carry their
// provenance.
func TestWorkflowsTrustNobody(t *testing.T) {
	type step struct {
		Uses, Run string
		With      map[string]any
	}
	var proven []string
	for _, name := range []string{"ci.yml", "release.yml"} {
		text := read(t, "../../.github/workflows/"+name)
		var file struct {
			Jobs map[string]struct {
				Needs string
				Steps []step
			}
		}
		if err := yaml.Unmarshal([]byte(text), &file); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for job, j := range file.Jobs {
			for _, s := range j.Steps {
				if s.Uses != "" && !regexp.MustCompile(`^[a-z/-]+@[0-9a-f]{40}$`).MatchString(s.Uses) {
					t.Errorf("%s: %s is not pinned by a commit", name, s.Uses)
				}
				if strings.HasPrefix(s.Uses, "actions/checkout@") && s.With["persist-credentials"] != false {
					t.Errorf("%s: the checkout of %s leaves its token behind", name, job)
				}
				if strings.HasPrefix(s.Uses, "actions/attest-build-provenance@") {
					proven = append(proven, job)
				}
			}
			if first := j.Needs == ""; name == "release.yml" &&
				first != strings.Contains(j.Steps[min(1, len(j.Steps)-1)].Run, "merge-base --is-ancestor") {
				t.Errorf("%s: %s begins without a look whether the tag is on main: %t", name, job, first)
			}
		}
		if strings.Contains(text, "qemu") {
			t.Errorf("%s emulates a machine", name)
		}
	}
	slices.Sort(proven)
	if !slices.Equal(proven, []string{"binaries", "chart", "image"}) {
		t.Errorf("provenance of %v", proven)
	}
	if file := read(t, "../Dockerfile"); !strings.Contains(file, "FROM --platform=$BUILDPLATFORM golang") ||
		!strings.Contains(file, "GOARCH=$TARGETARCH") {
		t.Error("the Dockerfile does not cross-compile")
	}
}

// scripts/dist.sh makes the archive of a system other than this one as the release would: the same flags, names and
// files.
func TestDist(t *testing.T) {
	var release struct {
		Builds []struct {
			Main, Binary   string
			Env            []string
			Flags, Ldflags []string
		}
		Archives []struct {
			NameTemplate string `json:"name_template"`
			Files        []string
		}
		Checksum struct {
			NameTemplate string `json:"name_template"`
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "../../.goreleaser.yaml")), &release); err != nil {
		t.Fatal(err)
	}
	build, archive := release.Builds[0], release.Archives[0]
	script := read(t, "../../scripts/dist.sh")
	ldflags := strings.ReplaceAll(strings.Join(build.Ldflags, " "), "{{ .Tag }}", "$version")
	for _, want := range slices.Concat([]string{`-ldflags "` + ldflags + `"`, build.Main}, build.Flags, build.Env) {
		if !strings.Contains(script, want) {
			t.Errorf("scripts/dist.sh has no %s", want)
		}
	}

	system, architecture := "darwin", "arm64"
	if runtime.GOOS == system {
		system = "linux"
	}
	dir := t.TempDir()
	dist := exec.Command("../../scripts/dist.sh", dir, "v1.2.3", system+"/"+architecture)
	if out, err := dist.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	name := strings.NewReplacer("{{ .Tag }}", "v1.2.3", "{{ .Os }}", system, "{{ .Arch }}",
		architecture).Replace(archive.NameTemplate) + ".tar.gz"
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	if sums := read(t, filepath.Join(dir, release.Checksum.NameTemplate)); sums != fmt.Sprintf("%x  %s\n",
		sha256.Sum256(text), name) {
		t.Errorf("checksums:\n%s", sums)
	}
	unzipped, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	var has []string
	for files := tar.NewReader(unzipped); ; {
		header, err := files.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		has = append(has, header.Name)
	}
	if want := append([]string{build.Binary}, archive.Files...); !slices.Equal(has, want) {
		t.Errorf("the archive has %v, want %v", has, want)
	}
}

// The release is made by the goreleaser whose check CI runs, for the systems that are promised, and says its version.
func TestRelease(t *testing.T) {
	var file struct {
		Builds []struct {
			Main, Binary   string
			Goos, Goarch   []string
			Flags, Ldflags []string
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "../../.goreleaser.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	build := file.Builds[0]
	if !slices.Equal(build.Goos, []string{"linux", "darwin"}) ||
		!slices.Equal(build.Goarch, []string{"amd64", "arm64"}) {
		t.Errorf("binaries for %v, %v", build.Goos, build.Goarch)
	}
	const stamp = "-X main.version="
	for name, text := range map[string]string{
		".goreleaser.yaml": strings.Join(build.Ldflags, " "), "the Makefile": read(t, "../../Makefile"),
		"the Dockerfile": read(t, "../Dockerfile"),
	} {
		if !strings.Contains(text, stamp) {
			t.Errorf("%s does not stamp the version: no %s", name, stamp)
		}
	}
	pinned := regexp.MustCompile(`(?m)^GORELEASER_VERSION := (\S+)$`).FindStringSubmatch(read(t, "../../Makefile"))
	workflow := read(t, "../../.github/workflows/release.yml")
	if len(pinned) != 2 || !strings.Contains(workflow, "version: "+pinned[1]+" ") {
		t.Errorf("the Makefile has goreleaser %v, the release another one", pinned)
	}
	if err := yaml.Unmarshal([]byte(workflow), &map[string]any{}); err != nil {
		t.Errorf("release.yml: %v", err)
	}
	for _, want := range []string{"file: deploy/Dockerfile", "build-args: VERSION=",
		"helm package deploy/helm/timerd"} {
		if !strings.Contains(workflow, want) {
			t.Errorf("release.yml has no %q", want)
		}
	}
}
