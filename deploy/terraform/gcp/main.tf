# A pool of agents on Google Cloud: one network, one zone, one machine per entry, from the image that
# deploy/packer/gcp.pkr.hcl makes.
#
#   evenfall plan deploy FILE --out DIR
#   terraform apply -var-file=DIR/terraform.tfvars.json -var=settings_dir=DIR -var=project=PROJECT

terraform {
  required_version = ">= 1.5"
  required_providers {
    google = {
      source  = "hashicorp/google"
      version = "~> 6.0"
    }
  }
}

provider "google" {
  project = var.project
  zone    = var.zone
}

locals {
  region = substr(var.zone, 0, length(var.zone) - 2)
  # Google places at most 22 machines compactly, and none of the types e2 and n1.
  compact = (
    var.compact == null
    ? length(var.machines) <= 22 && !can(regex("^(e2|n1)-", var.machine_type))
    : var.compact
  )
}

resource "google_compute_network" "pool" {
  name                    = var.name
  auto_create_subnetworks = false
}

resource "google_compute_subnetwork" "pool" {
  name          = var.name
  region        = local.region
  network       = google_compute_network.pool.id
  ip_cidr_range = var.subnet
}

# Feed 9000/udp, agents 9400/tcp and udp, health and metrics 9180 and 9181/tcp.
resource "google_compute_firewall" "pool" {
  name          = "${var.name}-inside"
  network       = google_compute_network.pool.name
  source_ranges = concat([var.subnet], var.admin_ranges)
  allow {
    protocol = "udp"
    ports    = ["9000", "9400"]
  }
  allow {
    protocol = "tcp"
    ports    = ["9180-9181", "9400"]
  }
}

# The way in: `gcloud compute ssh NAME --tunnel-through-iap`. The range is that of Google's proxy.
resource "google_compute_firewall" "iap" {
  name          = "${var.name}-iap"
  network       = google_compute_network.pool.name
  source_ranges = ["35.235.240.0/20"]
  allow {
    protocol = "tcp"
    ports    = ["22"]
  }
}

# Machines are placed near each other, because short and similar paths allow a short hold.
resource "google_compute_resource_policy" "near" {
  count  = local.compact ? 1 : 0
  name   = "${var.name}-near"
  region = local.region
  group_placement_policy {
    collocation = "COLLOCATED"
  }
}

resource "google_service_account" "pool" {
  account_id = "${var.name}-pool"
}

resource "google_secret_manager_secret_iam_member" "key" {
  secret_id = var.key_secret
  role      = "roles/secretmanager.secretAccessor"
  member    = "serviceAccount:${google_service_account.pool.email}"
}

resource "google_compute_instance" "agent" {
  for_each = { for machine in var.machines : machine.name => machine }

  name              = each.key
  machine_type      = var.machine_type
  resource_policies = google_compute_resource_policy.near[*].id
  boot_disk {
    initialize_params {
      image = var.image
    }
  }
  network_interface {
    subnetwork = google_compute_subnetwork.pool.id
    network_ip = each.value.address
    nic_type   = "GVNIC"
    access_config {}
  }
  # A machine that moves to another host pauses for a moment, and its measured delays no longer hold.
  scheduling {
    on_host_maintenance = "TERMINATE"
    automatic_restart   = true
  }
  service_account {
    email  = google_service_account.pool.email
    scopes = ["cloud-platform"]
  }
  # evenfall-settings on the machine reads these every 30 seconds and makes the services match. No
  # value here, `start_feed` included, replaces or stops a machine: the trees were measured on it.
  metadata = {
    enable-oslogin  = "TRUE"
    evenfall-agents = file("${var.settings_dir}/agents.toml")
    evenfall-feed   = file("${var.settings_dir}/feed.toml")
    evenfall-plan   = file("${var.settings_dir}/plan.toml")
    evenfall-key    = var.key_secret
    evenfall-services = join(" ", compact([
      "agent:${each.key}",
      each.value.index == 0 ? "plan" : "",
      var.start_feed ? "${each.value.feed_role}:${each.value.feed_name}" : "",
    ]))
  }
  depends_on = [google_secret_manager_secret_iam_member.key]
  # A newer image is for new machines; replace one by `terraform apply -replace=...`.
  lifecycle {
    ignore_changes = [boot_disk[0].initialize_params[0].image]
  }
}

output "agents" {
  value = [for machine in var.machines : "${machine.address}:9400"]
}
