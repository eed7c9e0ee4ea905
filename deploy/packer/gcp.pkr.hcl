# An image with the static binary and the unit, and no key.
#
#   deploy/docker/build.sh && packer build -var project=PROJECT deploy/packer/gcp.pkr.hcl

packer {
  required_plugins {
    googlecompute = {
      source  = "github.com/hashicorp/googlecompute"
      version = ">= 1.1.0"
    }
  }
}

variable "project" {
  type = string
}

variable "zone" {
  type    = string
  default = "us-central1-a"
}

variable "binary" {
  type    = string
  default = "target/x86_64-unknown-linux-gnu/image/evenfall"
}

source "googlecompute" "evenfall" {
  project_id          = var.project
  zone                = var.zone
  source_image_family = "debian-12"
  image_family        = "evenfall"
  image_name          = "evenfall-{{timestamp}}"
  machine_type        = "e2-small"
  ssh_username        = "packer"
}

build {
  sources = ["source.googlecompute.evenfall"]

  provisioner "file" {
    source      = var.binary
    destination = "/tmp/evenfall"
  }
  provisioner "file" {
    source      = "deploy/systemd"
    destination = "/tmp"
  }
  provisioner "shell" {
    inline = [
      "sudo install -m 755 /tmp/evenfall /usr/local/bin/evenfall",
      "sudo install -m 755 /tmp/systemd/evenfall-settings /usr/local/bin/evenfall-settings",
      "sudo install -m 644 /tmp/systemd/*.service /tmp/systemd/*.timer /etc/systemd/system/",
      "sudo install -m 644 /tmp/systemd/evenfall.sysusers /usr/lib/sysusers.d/evenfall.conf",
      "sudo install -m 644 /tmp/systemd/evenfall.sysctl /etc/sysctl.d/90-evenfall.conf",
      "sudo install -d -m 755 /etc/evenfall && sudo systemd-sysusers",
      "echo gcp | sudo tee /etc/evenfall/source",
      "sudo apt-get update -qq && sudo apt-get install -y -qq chrony",
      "sudo systemctl enable evenfall-settings.timer",
    ]
  }
}
